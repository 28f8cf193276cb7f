"""Micro-batches of images and texts, packed without padding, in an order that is a function of the seed.

Every rank computes the same order, and what each micro-batch will cost, from (seed, step) and the index alone; only the
first stage decodes images and only the last one reads targets.
"""

from typing import Any

import numpy as np
import torch

from hpcpipe.data.batches import Batches, counted_tokens
from hpcpipe.data.image_records import IMAGE, ImageRecords, Loads
from hpcpipe.data.order import Deal, Order, Samples


class ImageTextOrder:
    """Which records each step has, dealt out to replicas and micro-batches, and what they cost.

    Parameters
    ----------
    held
        Records, the last ones, that no step has.
    """

    def __init__(
        self,
        records: ImageRecords,
        *,
        seed: int,
        microbatches: int,
        microbatch_size: int,
        replicas: int,
        held: int = 0,
    ) -> None:
        self.records = records
        order = Order(len(records) - held, seed=seed)
        self.deals = [
            Deal(order, microbatches=microbatches, size=microbatch_size, replica=replica, replicas=replicas)
            for replica in range(replicas)
        ]

    def step(self, step: int) -> Samples:
        """Return the records of a step by number, (replicas, microbatches, microbatch_size)."""
        return np.stack([deal.mine(step) for deal in self.deals])

    def loads(self, step: int) -> Loads:
        """Return the loads of the step's micro-batches, (replicas, microbatches) each."""
        chosen = self.step(step)
        return Loads(*(each[chosen].sum(axis=-1) for each in self.records.loads))


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

    def read(self, samples: Samples) -> tuple[dict[str, Any], torch.Tensor]:
        """Return what the layers of models/vlm.py want, and the tokens that the loss counts (targets,) int64.

        The inputs are "pixels", "grids", "text", "order", "lengths" and "predict".
        """
        records, chosen = self._records, samples.tolist()
        sequences = [records.sequence(record) for record in chosen]
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
        pixels = [image for record in chosen for image in records.pixels(record)]
        none = np.zeros((0, records.values_of_a_patch), dtype=np.uint8)
        inputs = {
            "pixels": torch.from_numpy(np.concatenate([none, *pixels])),
            "grids": [list(grid) for record in chosen for grid in records.grids(record)],
            "text": torch.from_numpy(tokens[is_text]),
            "order": torch.from_numpy(order),
            "lengths": lengths,
            "predict": torch.from_numpy(np.flatnonzero(counted) - 1),
        }
        return inputs, labels


def image_text_batches(order: ImageTextOrder, *, replica: int, steps: int, images: bool = True) -> Batches:
    """Return one replica's micro-batches; what a step counts for the loss is known from the index alone."""
    return Batches(
        ImageTextSource(order.records, images=images),
        order.deals[replica],
        steps=steps,
        count=counted_tokens,
        total=lambda step: float(order.loads(step).targets.sum()),
    )
