"""The data of a job as micro-batches, and how many tokens they hold; each kind of `[data]` is told apart here only.

Nothing is read and torch is not needed until micro-batches are asked for.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hpcpipe.job import Job
from hpcpipe.job.datasets import Text

if TYPE_CHECKING:
    from hpcpipe.runtime.stage import Batches


def batches_of(job: Job, *, replica: int) -> "Batches":
    """Return the micro-batches of one replica.

    Raises
    ------
    OSError, ValueError
        The data cannot be read or are too few.
    """
    return _MAKERS[type(job.data)](job, replica)


def tokens_of_a_microbatch(job: Job) -> int:
    """Return the tokens of a micro-batch; synthetic data has none."""
    return job.batch.microbatch_size * job.data.seq_len if isinstance(job.data, Text) else 0


def tokens_per_step(job: Job) -> int:
    """Return the tokens of the global batch."""
    return job.batch.microbatches * job.parallel.data * tokens_of_a_microbatch(job)


def _text(job: Job, replica: int) -> "Batches":
    from hpcpipe.data import TextBatches

    data, batch = job.data, job.batch
    assert isinstance(data, Text)
    return TextBatches(
        data.resolved_path,
        seq_len=data.seq_len,
        seed=data.seed,
        microbatches=batch.microbatches,
        microbatch_size=batch.microbatch_size,
        replica=replica,
        replicas=job.parallel.data,
    )


_MAKERS: dict[type, Callable[[Job, int], "Batches"]] = {Text: _text}
