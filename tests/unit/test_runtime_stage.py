"""A stage's chunks without ranks: what B gives at once, what waits for W, and what passes from chunk to chunk."""

import pytest
import torch
from torch import nn

from hpcpipe.device.gpu import seed_generators
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.plan import Kind, Task
from hpcpipe.runtime.stage import Chunk, Stage

INPUTS, TARGETS = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1)), torch.zeros(2, 3, 5)


class OneBatch:
    """Two micro-batches that are there already."""

    def load(self, step):
        pass

    def inputs(self, microbatch):
        return INPUTS[microbatch]

    def targets(self, microbatch):
        return TARGETS[microbatch]


def _loss(output, targets):
    return (output - targets).square().sum()


def _stage(*, split):
    """Return a stage that holds the whole chain in two chunks, and what its sinks were given."""
    torch.manual_seed(3)
    layers = [nn.Linear(4, 6), nn.Linear(6, 5)]
    given = []
    chunks = [
        Chunk(
            [deferrable(layer)[0] if split else layer],
            list(layer.parameters()),
            first=number == 0,
            loss=_loss if number == 1 else None,
            sink=lambda microbatch, gradients, number=number: given.append((number, microbatch, list(gradients))),
        )
        for number, layer in enumerate(layers)
    ]
    return Stage(chunks, batches=OneBatch(), recording=recording if split else None), layers, given


def _run(stage, kind, microbatch, chunk, received=None):
    running = stage.start(0, Task(kind, microbatch, chunk), received)
    assert running.done()
    return running.result()


def _reference(layers, microbatch):
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    loss = _loss(layers[1](layers[0](INPUTS[microbatch])), TARGETS[microbatch])
    return torch.autograd.grad(loss, parameters), loss.item()


@pytest.mark.parametrize("split", [False, True])
def test_the_gradients_of_a_chain_in_two_chunks_have_the_bits_of_the_whole_chain(split):
    stage, layers, given = _stage(split=split)
    stage.load(0)
    hidden = [_run(stage, Kind.F, m, 0) for m in range(2)]
    assert [_run(stage, Kind.F, m, 1, hidden[m]) for m in (1, 0)] == [None, None]
    gradients = {m: _run(stage, Kind.B, m, 1) for m in (1, 0)}
    assert [_run(stage, Kind.B, m, 0, gradients[m]) for m in (0, 1)] == [None, None]
    if split:
        assert given == []
        for m in (1, 0):
            for chunk in (0, 1):
                assert _run(stage, Kind.W, m, chunk) is None
    assert len(given) == 4
    references = [_reference(layers, m) for m in range(2)]
    assert stage.loss() == pytest.approx(sum(loss for _, loss in references), rel=1e-6)
    for chunk, microbatch, found in given:
        expected = references[microbatch][0][2 * chunk : 2 * chunk + 2]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_input_that_takes_no_gradient_gives_none_back():
    stage, _, given = _stage(split=True)
    _run(stage, Kind.F, 0, 0)
    assert _run(stage, Kind.B, 0, 0, torch.ones(3, 6)) is None
    _run(stage, Kind.W, 0, 0)
    assert [number for number, _, _ in given] == [0]


def test_what_a_chunk_hands_on_lies_in_no_slot_that_may_be_filled_again_before_the_next_chunk_is_done():
    """Both ways: a value that goes through as it was, and the gradient that comes back for it."""
    chunks = [
        Chunk([nn.Identity()], [], first=False, loss=None, sink=lambda _microbatch, _gradients: None) for _ in range(2)
    ]
    stage = Stage(chunks, batches=None)
    slot = torch.ones(3).requires_grad_()
    handed = _run(stage, Kind.F, 0, 0, slot)
    _run(stage, Kind.F, 0, 1, handed)
    gradient_slot = torch.full((3,), 2.0)
    gradient = _run(stage, Kind.B, 0, 1, gradient_slot)
    with torch.no_grad():
        slot.zero_()
        gradient_slot.zero_()
    assert torch.equal(handed, torch.ones(3))
    assert torch.equal(gradient, torch.full((3,), 2.0))
    assert torch.equal(_run(stage, Kind.B, 0, 0, gradient), gradient)


@pytest.mark.parametrize("value", [0, 1, 2**63 - 1])
def test_layers_draw_as_after_torch_s_own_seeding_which_need_not_be_called(monkeypatch, value):
    torch.manual_seed(value)
    expected = torch.nn.functional.dropout(torch.ones(100), 0.3), torch.randn(3), torch.randint(99, (3,))
    monkeypatch.setattr(torch, "manual_seed", None)
    seed_generators(value)
    found = torch.nn.functional.dropout(torch.ones(100), 0.3), torch.randn(3), torch.randint(99, (3,))
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
