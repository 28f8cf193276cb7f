"""Which samples a step gets: a pure function of the seed and the step, so a run is resumed by its step's number alone.

Samples are numbers here; what they are and where they lie is not known.
"""

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.int64]


class Order:
    """An endless row of samples: every epoch holds each once, in an order that is a function of (seed, epoch).

    An epoch's order takes 8 bytes a sample, on the ranks that read data.
    """

    def __init__(self, samples: int, *, seed: int) -> None:
        self._samples = samples
        self._seed = seed
        self._epoch: tuple[int, Samples] | None = None

    def take(self, first: int, count: int) -> Samples:
        """Return the samples at the positions `first`, `first + 1`, … since the start of the training."""
        parts, end = [], first + count
        while first < end:
            epoch, position = divmod(first, self._samples)
            part = self._of(epoch)[position : position + end - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def _of(self, epoch: int) -> Samples:
        if self._epoch is None or self._epoch[0] != epoch:
            generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            self._epoch = epoch, generator.permutation(self._samples)
        return self._epoch[1]


class Deal:
    """Deals the row out to steps, replicas and micro-batches: each step takes the next `global_batch` samples.

    A replica gets a contiguous part of them and cuts it into micro-batches. So all micro-batches are full, an epoch may
    end inside a step, and two layouts of one global batch see the same samples in the same step.
    """

    def __init__(self, order: Order, *, microbatches: int, size: int, replica: int, replicas: int) -> None:
        self._order = order
        self._shape = microbatches, size
        self._replica, self._replicas = replica, replicas

    def cut(self, *, microbatches: int, size: int) -> "Deal":
        """Return a deal of the same samples to other micro-batches: of each step a replica has the same, in one order.

        Raises
        ------
        ValueError
            The number of a replica's samples is another one.
        """
        before, after = self._shape[0] * self._shape[1], microbatches * size
        if before != after:
            raise ValueError(f"{microbatches} micro-batches of {size} are {after} samples, a replica has {before}")
        return Deal(self._order, microbatches=microbatches, size=size, replica=self._replica, replicas=self._replicas)

    @property
    def global_batch(self) -> int:
        """Samples of a step on all replicas."""
        return self._shape[0] * self._shape[1] * self._replicas

    def mine(self, step: int) -> Samples:
        """Return this replica's samples of a step: (micro-batches, samples of each)."""
        count = self._shape[0] * self._shape[1]
        return self._order.take(step * self.global_batch + self._replica * count, count).reshape(self._shape)

    def others(self, step: int) -> Samples:
        """Return the other replicas' samples of a step: (their micro-batches, samples of each)."""
        whole = self._order.take(step * self.global_batch, self.global_batch)
        parts = whole.reshape(self._replicas, *self._shape)
        return np.delete(parts, self._replica, axis=0).reshape(-1, self._shape[1])


def held_out(samples: int, fraction: float) -> int:
    """Return how many of the samples, the last ones, are held out: at least one, and one stays.

    Raises
    ------
    ValueError
        There are too few.
    """
    if fraction == 0:
        return 0
    if samples < 2:
        raise ValueError(f"of {samples} samples none can be held out for evaluation (eval_fraction = {fraction:g})")
    return min(samples - 1, max(1, round(samples * fraction)))


def evaluation_deal(first: int, count: int, *, size: int, replica: int, replicas: int) -> list[Samples]:
    """Return this replica's micro-batches of an evaluation: samples `first` to `first + count - 1`, each once.

    Micro-batches are cut in order and go to the replicas in turn; the last one may be smaller than `size`.
    """
    samples = np.arange(first, first + count, dtype=np.int64)
    cuts = range(0, count, size)
    return [samples[begin : begin + size] for begin in cuts[replica::replicas]]
