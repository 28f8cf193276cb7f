"""Training: a job's layout on its ranks, the loop, the optimizer's shards, what a run leaves on disk."""

from hpcpipe.events.recording import ReplayError
from hpcpipe.job.factory import UserCodeError
from hpcpipe.train.layout import Layout
from hpcpipe.train.metrics import StepMetrics
from hpcpipe.train.rank import Rank
from hpcpipe.train.replay import Replay, read_replay
from hpcpipe.train.resume import choose_together
from hpcpipe.train.trainer import Origin, Outcome, Reporter, train

__all__ = [
    "Layout",
    "Origin",
    "Outcome",
    "Rank",
    "Replay",
    "ReplayError",
    "Reporter",
    "StepMetrics",
    "UserCodeError",
    "choose_together",
    "read_replay",
    "train",
]
