"""Micro-batches of images and texts, packed without padding, in an order that is a function of the seed.

Every rank computes the same order, and what each micro-batch will cost, from (seed, step) and the index alone; only the
first stage decodes images and only the last one reads targets.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hpcpipe.data.image_records import IMAGE, ImageRecords, Loads
from hpcpipe.data.prefetch import Prefetched


class ImageTextOrder:
    """Which records each step has: shuffled anew each epoch, dealt out to replicas and micro-batches."""

    def __init__(
        self, records: ImageRecords, *, seed: int, microbatches: int, microbatch_size: int, replicas: int
    ) -> None:
        self.records = records
        self._seed = seed
        self._shape = replicas, microbatches, microbatch_size
        self._epoch: tuple[int, np.ndarray] | None = None

    def step(self, step: int) -> np.ndarray:
        """Return the records of a step by number, (replicas, microbatches, microbatch_size)."""
        count = int(np.prod(self._shape))
        return np.array([self._record(step * count + i) for i in range(count)]).reshape(self._shape)

    def loads(self, step: int) -> Loads:
        """Return the loads of the step's micro-batches, (replicas, microbatches) each."""
        chosen = self.step(step)
        return Loads(*(each[chosen].sum(axis=-1) for each in self.records.loads))

    def _record(self, sample: int) -> int:
        epoch, position = divmod(sample, len(self.records))
        known = self._epoch
        if known is None or known[0] != epoch:
            order = np.random.Generator(np.random.Philox(key=[self._seed, epoch])).permutation(len(self.records))
            known = self._epoch = epoch, order
        return int(known[1][position])


class ImageTextSource:
    """Records put together: inputs and targets of a micro-batch by the numbers of its records.

    Parameters
    ----------
    images
        Whether inputs are asked for; without, no image is opened.
    """

    def __init__(self, records: ImageRecords, *, images: bool = True) -> None:
        self._records = records
        self._images = images

    def __len__(self) -> int:
        return len(self._records)

    def read(self, samples: Sequence[int]) -> tuple[dict[str, Any], torch.Tensor]:
        """Return what the layers of models/vlm.py want, and the tokens that the loss counts (targets,) int64.

        The inputs are "pixels", "grids", "text", "order", "lengths" and "predict".
        """
        records = self._records
        sequences = [records.sequence(record) for record in samples]
        lengths = [len(sequence) for sequence in sequences]
        tokens = np.concatenate(sequences)
        is_text = tokens != IMAGE
        counted = is_text.copy()
        counted[np.cumsum([0, *lengths[:-1]])] = False  # nothing comes before a record's first token
        labels = torch.from_numpy(tokens[counted])
        if not self._images:
            return {}, labels
        order = np.empty(len(tokens), dtype=np.int64)
        order[is_text] = np.arange(is_text.sum())
        order[~is_text] = np.arange(is_text.sum(), len(tokens))
        pixels = [image for record in samples for image in records.pixels(record)]
        none = np.zeros((0, records.values_of_a_patch), dtype=np.uint8)
        inputs = {
            "pixels": torch.from_numpy(np.concatenate([none, *pixels])),
            "grids": [list(grid) for record in samples for grid in records.grids(record)],
            "text": torch.from_numpy(tokens[is_text]),
            "order": torch.from_numpy(order),
            "lengths": lengths,
            "predict": torch.from_numpy(np.flatnonzero(counted) - 1),
        }
        return inputs, labels


class ImageTextBatches:
    """One replica's micro-batches, read one step ahead.

    Parameters
    ----------
    steps
        Of the training; nothing is read beyond.
    images
        As of ImageTextSource.
    """

    def __init__(self, order: ImageTextOrder, *, replica: int, steps: int, images: bool = True) -> None:
        self._order = order
        self._replica = replica
        self._source = ImageTextSource(order.records, images=images)
        self._ahead = Prefetched(self.read, steps=steps)
        self._loaded: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def load(self, step: int) -> None:
        """Make this replica's records of the step ready; waits only if they are not read yet."""
        self._loaded = self._ahead.take(step)

    def read(self, step: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return inputs and targets of the step's micro-batches; it keeps nothing, so another thread may call it."""
        of = int(self._order.loads(step).targets.sum())
        read = [self._source.read(samples.tolist()) for samples in self._order.step(step)[self._replica]]
        return [(inputs, {"labels": labels, "of": of}) for inputs, labels in read]

    def inputs(self, microbatch: int) -> dict[str, Any]:
        """Return the model's input."""
        return self._loaded[microbatch][0]

    def targets(self, microbatch: int) -> dict[str, Any]:
        """Return "labels" (targets,) int64, and "of": the number of the whole step's targets."""
        return self._loaded[microbatch][1]
