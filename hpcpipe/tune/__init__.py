"""The choice of kFkB's group and micro-batch under a memory limit (Ada-Grouper, arXiv 2303.01675), live and offline."""

from hpcpipe.tune.candidates import Candidate, NoGroupingFitsError, Pruned, Space, make_space
from hpcpipe.tune.choice import Chooser, Decision, Settings
from hpcpipe.tune.edges import BurstDetector, EdgeWindow, LinkFit, fit_link
from hpcpipe.tune.grouping import Grouping
from hpcpipe.tune.jobs import batch_of, emulated_memory, grouping_of, space_of, with_grouping
from hpcpipe.tune.memory import StageMemory
from hpcpipe.tune.meter import EdgeTimes, Meter, Report, read_rows
from hpcpipe.tune.predict import Measured, Predictor

__all__ = [
    "BurstDetector",
    "Candidate",
    "Chooser",
    "Decision",
    "EdgeTimes",
    "EdgeWindow",
    "Grouping",
    "LinkFit",
    "Measured",
    "Meter",
    "NoGroupingFitsError",
    "Predictor",
    "Pruned",
    "Report",
    "Settings",
    "Space",
    "StageMemory",
    "batch_of",
    "emulated_memory",
    "fit_link",
    "grouping_of",
    "make_space",
    "read_rows",
    "space_of",
    "with_grouping",
]
