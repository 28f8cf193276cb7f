"""Micro-batches from a text file: its bytes are the tokens, memory-mapped, in an order that is a function of the seed.

Every rank computes the same order from (seed, step), so nothing is sent: the first stage reads the inputs and the last
stage the targets of the same windows.
"""

from pathlib import Path

import numpy as np
import torch


class TextBatches:
    """Windows of seq_len + 1 bytes, shuffled anew each epoch, dealt out to steps, replicas and micro-batches.

    Parameters
    ----------
    microbatches, microbatch_size, replicas
        The global batch is their product; a replica gets a contiguous part of it.
    """

    def __init__(
        self,
        path: Path,
        *,
        seq_len: int,
        seed: int,
        microbatches: int,
        microbatch_size: int,
        replica: int,
        replicas: int,
    ) -> None:
        self._tokens = np.memmap(path, dtype=np.uint8, mode="r")
        self._seq_len = seq_len
        self._seed = seed
        self._size = microbatch_size
        self._per_step = microbatches * microbatch_size * replicas
        self._offset = replica * microbatches * microbatch_size
        self._count = microbatches * microbatch_size
        self._windows = (len(self._tokens) - 1) // seq_len
        self._epoch: tuple[int, np.ndarray] | None = None
        self._batch = torch.empty(0)
        if self._windows < 1:
            raise ValueError(f"{path}: {len(self._tokens)} bytes are fewer than one sequence of {seq_len + 1}")

    def load(self, step: int) -> None:
        """Read this replica's windows of the step."""
        first = step * self._per_step + self._offset
        starts = np.array([self._window(first + i) for i in range(self._count)]) * self._seq_len
        rows = self._tokens[starts[:, None] + np.arange(self._seq_len + 1)]
        self._batch = torch.from_numpy(rows.astype(np.int64)).view(-1, self._size, self._seq_len + 1)

    def inputs(self, microbatch: int) -> torch.Tensor:
        """Return (microbatch_size, seq_len) int64."""
        return self._batch[microbatch, :, :-1].contiguous()

    def targets(self, microbatch: int) -> torch.Tensor:
        """Return the inputs shifted by one."""
        return self._batch[microbatch, :, 1:].contiguous()

    def _window(self, sample: int) -> int:
        """Return the window of the sample-th sequence since the start of the training."""
        epoch, position = divmod(sample, self._windows)
        if self._epoch is None or self._epoch[0] != epoch:
            order = np.random.Generator(np.random.Philox(key=[self._seed, epoch])).permutation(self._windows)
            self._epoch = epoch, order
        return int(self._epoch[1][position])
