"""One rank of a training of SmolLM2-135M on an English text: `smollm2_rank.py JOB.toml RUN_DIRECTORY TOKENS.npy`.

The tokens are given as an array, so that the test depends on no kind of data.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from hpcpipe.job import load_job
from hpcpipe.runtime import World
from hpcpipe.train import Origin, train, trained


class Windows:
    """Sequences one after the other, the same in every step."""

    def __init__(self, job, tokens):
        rows, length = job.batch.microbatches * job.batch.microbatch_size, job.data.seq_len
        self._rows = torch.from_numpy(tokens[: rows * length + 1].astype(np.int64)).unfold(0, length + 1, length)
        self._size = job.batch.microbatch_size

    def load(self, step):
        pass

    def _of(self, microbatch):
        return self._rows[microbatch * self._size : (microbatch + 1) * self._size]

    def inputs(self, microbatch):
        return self._of(microbatch)[:, :-1].contiguous()

    def targets(self, microbatch):
        return self._of(microbatch)[:, 1:].contiguous()


def main(job_file, run_directory, tokens):
    job = load_job(Path(job_file))
    trained.batches_of = lambda job, **_: Windows(job, np.load(tokens))
    layers = []

    def look(step, rank):
        layers[:] = [type(module).__name__ for module in rank.modules]

    outcome = train(job, world=World(), run_directory=Path(run_directory), origin=Origin(), before_step=look)
    (Path(run_directory) / f"layers_{World().rank}").write_text("\n".join(layers))
    sys.exit(outcome.exit_code)


main(*sys.argv[1:])
