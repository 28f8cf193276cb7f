"""Numbers of which some are scalars of a GPU come to the host in one copy."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcpipe.train.buckets import numbers_of


class _Copies(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.stacked = self.asked = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.stacked += function is torch.ops.aten.stack.default
        self.asked += function is torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(keywords or {}))


def test_scalars_and_numbers_keep_their_order_and_are_copied_together():
    values = [1.5, torch.tensor(2.0, dtype=torch.float64), 3.0, torch.tensor(0.1, dtype=torch.float64)]
    with _Copies() as copies:
        assert numbers_of(values) == [1.5, 2.0, 3.0, 0.1]
    assert (copies.stacked, copies.asked) == (1, 0)


def test_numbers_alone_are_left_as_they_are():
    assert numbers_of([]) == []
    assert numbers_of([0.0, float("inf")]) == [0.0, float("inf")]
