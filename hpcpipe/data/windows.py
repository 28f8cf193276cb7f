"""Sequences for a language model, cut from a row of tokens: every seq_len tokens one begins, with its next token.

A sample is a window of seq_len + 1 tokens; the tail that is too short for one is left out.
"""

import numpy as np
import torch

from hpcpipe.data.order import Samples
from hpcpipe.data.tokens import Row


class Windows:
    """The windows of a row.

    Parameters
    ----------
    vocab_size
        How many ids the model knows; None where it does not say.

    Raises
    ------
    ValueError
        The row is shorter than one window.
    """

    def __init__(self, row: Row, *, seq_len: int, vocab_size: int | None = None) -> None:
        self._row, self._seq_len, self._vocab_size = row, seq_len, vocab_size
        self._windows = (len(row) - 1) // seq_len
        if self._windows < 1:
            raise ValueError(f"{row.name}: {len(row)} tokens are fewer than one sequence of {seq_len + 1}")

    def __len__(self) -> int:
        return self._windows

    def read(self, samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the tokens and the tokens that follow each, both (samples, seq_len) int64.

        Raises
        ------
        ValueError
            A token is not in the vocabulary.
        """
        begins = samples * self._seq_len
        ids = self._row.read(begins, self._seq_len + 1)
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (self._vocab_size is not None and high >= self._vocab_size):
            self._refuse(ids, begins)
        rows = torch.from_numpy(ids)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _refuse(self, ids: np.ndarray, begins: Samples) -> None:
        most = self._vocab_size if self._vocab_size is not None else np.iinfo(np.int64).max
        window, at = np.argwhere((ids < 0) | (ids >= most))[0]
        known = "" if self._vocab_size is None else f" (0 to {self._vocab_size - 1})"
        raise ValueError(
            f"{self._row.name}: token {ids[window, at]} at position {begins[window] + at} is not in the model's "
            f"vocabulary{known}; check that the file was made with the model's tokenizer, and [data] dtype"
        )
