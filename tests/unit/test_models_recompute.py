"""Recomputed ranges of layers: the same bits, fewer tensors between forward and backward."""

import contextlib
import gc
import weakref

import pytest
import torch
from deferred_layers import one_thread, same_bits, trained
from torch import nn

from hpcpipe.models import build, gpt_layers
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.recompute import run_layers

pytestmark = pytest.mark.usefixtures(one_thread.__name__)


def blocks(count: int, dropout: float = 0.2, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    layers = gpt_layers(layers=count, dim=16, heads=2, context=8, vocab_size=20, dropout=dropout, seq_len=8)
    return [module.to(dtype) for module in build(layers, range(len(layers)), seed=2)]


def step(layers, tokens, *, recompute=(), seed=None, deferred=False):
    """Return the output, all gradients, and torch's random state after forward and backward."""
    before = None if seed is None else lambda position: torch.manual_seed(seed + position)
    module, _ = deferrable(nn.ModuleList(layers)) if deferred else (nn.ModuleList(layers), [])
    parameters = trained(module)
    torch.manual_seed(1)
    output = run_layers(layers, tokens, recompute=recompute, before=before)
    with recording() as pending:
        folded = torch.autograd.grad(output, parameters, torch.ones_like(output), allow_unused=True)
    assert not deferred or all(gradient is None for gradient in folded)
    return output.detach(), pending.compute(parameters, folded), torch.get_rng_state()


@pytest.mark.parametrize("deferred", [False, True], ids=["unsplit", "split"])
@pytest.mark.parametrize("seed", [None, 40], ids=["one random state", "a seed for each layer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("ranges", [[range(4)], [range(1, 3)], [range(2), range(2, 3)], [range(3, 4)]])
def test_recomputed_ranges_give_the_same_bits_and_draws(ranges, dtype, seed, deferred):
    tokens = torch.randint(0, 20, (2, 8), generator=torch.Generator().manual_seed(0))
    output, gradients, state = step(blocks(2, dtype=dtype), tokens, seed=seed)
    again = step(blocks(2, dtype=dtype), tokens, seed=seed, recompute=ranges, deferred=deferred)
    assert same_bits(output, again[0])
    assert all(same_bits(one, other) for one, other in zip(gradients, again[1], strict=True))
    assert torch.equal(state, again[2])


def test_the_layers_of_a_range_run_twice_and_the_others_once():
    calls = []
    layers = blocks(2)
    value = run_layers(
        [lambda value, i=i, layer=layer: (calls.append(i), layer(value))[1] for i, layer in enumerate(layers)],
        torch.zeros(1, 8, dtype=torch.long),
        recompute=[range(1, 3)],
    )
    assert calls == [0, 1, 2, 3]
    value.sum().backward()
    assert calls == [0, 1, 2, 3, 1, 2]


def test_of_a_range_only_the_input_stays_until_the_backward():
    kept = []

    class Watched(nn.Linear):
        def forward(self, value):
            kept.append(weakref.ref(value))
            return super().forward(value).tanh()

    layers = [Watched(4, 4) for _ in range(4)]
    output = run_layers(layers, torch.ones(2, 4), recompute=[range(3)])
    gc.collect()
    alive = [reference() is not None for reference in kept]
    assert alive[1:3] == [False, False]  # activations within the range
    assert alive[3]  # the range's output, which the layer after it needs
    output.sum().backward()


def test_only_repeated_forwards_are_entered_as_such():
    entered = []

    @contextlib.contextmanager
    def again():
        entered.append("begin")
        try:
            yield
        finally:  # torch ends a repeated forward early, by an exception, when it has what it needs
            entered.append("end")

    output = run_layers(
        blocks(2), torch.zeros(1, 8, dtype=torch.long), recompute=[range(1, 2), range(2, 3)], again=again
    )
    assert entered == []
    output.sum().backward()
    assert entered == ["begin", "end"] * 2


def test_micro_batches_with_recomputation_may_be_pending_together():
    tokens = [torch.full((2, 8), token) for token in range(3)]
    layers = blocks(2, dropout=0.0)
    wanted = [step(layers, each)[1] for each in tokens]
    module, _ = deferrable(nn.ModuleList(layers))
    parameters = trained(module)
    held = []
    for each in tokens:
        output = run_layers(layers, each, recompute=[range(1, 4)])
        with recording() as pending:
            folded = torch.autograd.grad(output, parameters, torch.ones_like(output), allow_unused=True)
        held.append((pending, folded))
    for microbatch in (2, 0, 1):
        pending, folded = held[microbatch]
        gradients = pending.compute(parameters, folded)
        assert all(same_bits(one, other) for one, other in zip(gradients, wanted[microbatch], strict=True))


@pytest.mark.parametrize("ranges", [[range(2, 2)], [range(3, 5)], [range(2), range(1, 3)], [range(0, 4, 2)]])
def test_a_range_that_cannot_be_is_an_error(ranges):
    with pytest.raises(ValueError, match="of 4 layers a range must begin at"):
        run_layers(blocks(2), torch.zeros(1, 8, dtype=torch.long), recompute=ranges)
