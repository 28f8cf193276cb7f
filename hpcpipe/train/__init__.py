"""Training: a job's layout on its ranks, the loop, the optimizer's shards, what a run leaves on disk.

Names are imported when they are asked for: a layout or the sizes of a model are wanted where MPI must not start.
"""

from typing import TYPE_CHECKING

from hpcpipe.lazy import lazily

if TYPE_CHECKING:
    from hpcpipe.events.recording import ReplayError
    from hpcpipe.job.factory import UserCodeError
    from hpcpipe.train.layout import Layout
    from hpcpipe.train.metrics import StepMetrics
    from hpcpipe.train.rank import Rank
    from hpcpipe.train.records import Origin, Reporter
    from hpcpipe.train.replay import Replay, read_replay
    from hpcpipe.train.resume import choose_together
    from hpcpipe.train.trainer import Outcome, train

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

__getattr__ = lazily(
    __name__,
    {
        "ReplayError": "hpcpipe.events.recording",
        "UserCodeError": "hpcpipe.job.factory",
        "Layout": "hpcpipe.train.layout",
        "StepMetrics": "hpcpipe.train.metrics",
        "Rank": "hpcpipe.train.rank",
        "Replay": "hpcpipe.train.replay",
        "read_replay": "hpcpipe.train.replay",
        "choose_together": "hpcpipe.train.resume",
        "Origin": "hpcpipe.train.records",
        "Reporter": "hpcpipe.train.records",
        "Outcome": "hpcpipe.train.trainer",
        "train": "hpcpipe.train.trainer",
    },
)
