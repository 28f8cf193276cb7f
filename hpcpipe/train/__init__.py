"""Training: a job's layout on its ranks, the loop, the optimizer's shards, what a run leaves on disk."""

from hpcpipe.train.layout import Layout
from hpcpipe.train.metrics import StepMetrics
from hpcpipe.train.rank import Rank
from hpcpipe.train.trainer import Origin, Outcome, Reporter, train

__all__ = ["Layout", "Origin", "Outcome", "Rank", "Reporter", "StepMetrics", "train"]
