"""Training: a job's layout on its ranks, the loop, the optimizer's shards, what a run leaves on disk."""

from hpcpipe.train.layout import Layout
from hpcpipe.train.progress import make_console
from hpcpipe.train.rank import Rank
from hpcpipe.train.run_directory import write_whole
from hpcpipe.train.trainer import EXIT_DIVERGED, EXIT_DONE, Origin, Outcome, train

__all__ = ["EXIT_DIVERGED", "EXIT_DONE", "Layout", "Origin", "Outcome", "Rank", "make_console", "train", "write_whole"]
