"""What the tests of split backwards share: the unsplit backward beside the split one, and comparison by bits."""

import copy
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

from hpcpipe.models.deferred import deferrable, recording

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Gradients = Sequence[Tensor | None]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads, which a busy machine makes slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def same_bits(left: Tensor | None, right: Tensor | None) -> bool:
    """Whether two tensors have the same type, shape and bits: 0 and -0 differ, equal NaNs do not."""
    if left is None or right is None:
        return left is right
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    bits = _INTEGERS[left.element_size()]
    return torch.equal(left.clone().view(bits), right.clone().view(bits))


def trained(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that want a gradient."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def unsplit(module: nn.Module, value: Tensor, gradient: Callable[[Tensor], Tensor]) -> tuple[Tensor, Gradients]:
    """Return the output, and the gradients of the value (if it wants one) and the parameters by torch alone."""
    output = module(value)
    wanted = [value, *trained(module)] if value.requires_grad else trained(module)
    gradients = torch.autograd.grad(output, wanted, gradient(output), allow_unused=True)
    return output.detach(), gradients if value.requires_grad else (None, *gradients)


def split(module: nn.Module, value: Tensor, gradient: Callable[[Tensor], Tensor]) -> tuple[Tensor, Gradients]:
    """Return the same by B and then W."""
    output = module(value)
    parameters = trained(module)
    wanted = [value, *parameters] if value.requires_grad else parameters
    with recording() as pending:
        gradients = torch.autograd.grad(output, wanted, gradient(output), allow_unused=True)
    entry, folded = (gradients[0], gradients[1:]) if value.requires_grad else (None, gradients)
    return output.detach(), (entry, *pending.compute(parameters, folded))


def assert_split_has_the_bits_of_unsplit(
    module: nn.Module, value: Tensor, gradient: Callable[[Tensor], Tensor] | None = None
) -> None:
    """Compare output, input gradient and weight gradients of a module and its deferrable copy."""
    draw = gradient or (lambda output: torch.randn(output.shape, generator=_generator()).to(output.dtype))
    twin, _ = deferrable(copy.deepcopy(module))
    torch.manual_seed(7)
    output, gradients = unsplit(module, value, draw)
    torch.manual_seed(7)
    twin_output, twin_gradients = split(twin, value, draw)
    assert same_bits(output, twin_output), "the outputs differ"
    names = ["input", *(name for name, parameter in module.named_parameters() if parameter.requires_grad)]
    differing = [
        name for name, one, other in zip(names, gradients, twin_gradients, strict=True) if not same_bits(one, other)
    ]
    assert not differing, f"the gradients of {differing} differ"


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)
