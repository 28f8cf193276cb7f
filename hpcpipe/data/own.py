"""A data set of the user's own as a source of micro-batches: anything with a length and `[index] -> (input, target)`.

The form is that of torch's map-style data sets, so those work as they are.
"""

import traceback
from collections.abc import Callable
from typing import Any

from hpcpipe.data.order import Samples
from hpcpipe.job.words import type_of


class OwnSource:
    """Samples of a data set, put together by its own `collate(samples)` or as torch's DataLoader does.

    Raises
    ------
    TypeError
        It has no length, or its samples cannot be asked for by number.
    ValueError
        It is empty.
    """

    def __init__(self, name: str, dataset: Any) -> None:
        for method, what in (("__len__", "its length"), ("__getitem__", "a sample by its number")):
            if not hasattr(dataset, method):
                raise TypeError(
                    f"{name}: returned {type_of(dataset)}, which cannot be asked for {what}; return a data set "
                    "with __len__ and __getitem__(index) -> (input, target), as torch.utils.data.Dataset"
                )
        self._name, self._dataset = name, dataset
        if len(dataset) == 0:
            raise ValueError(f"{name}: the data set is empty")
        self._collate: Callable[[list[Any]], Any] = getattr(dataset, "collate", _usual_collate)

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, samples: Samples) -> tuple[Any, Any]:
        """Return the inputs and targets of a micro-batch.

        Raises
        ------
        ValueError
            The data set fails, or a sample or the batch is no pair.
        """
        found = []
        for number in samples.tolist():
            try:
                sample = self._dataset[number]
            except Exception as error:
                raise ValueError(f"{self._name}: sample {number} cannot be read: {_words(error)}") from error
            if not isinstance(sample, tuple | list) or len(sample) != 2:
                raise ValueError(f"{self._name}: sample {number} is {type_of(sample)}, not a pair (input, target)")
            found.append(sample)
        try:
            batch = self._collate(found)
        except Exception as error:
            raise ValueError(
                f"{self._name}: samples {samples.tolist()} cannot be put together: {_words(error)}; give the data set "
                "a method collate(samples) -> (inputs, targets) where samples differ in size"
            ) from error
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"{self._name}: collate returned {type_of(batch)}, not a pair (inputs, targets)")
        return batch[0], batch[1]


def _usual_collate(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate([tuple(sample) for sample in samples])


def _words(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
