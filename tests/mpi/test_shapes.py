"""What stages exchange may have any structure and varying shapes: torch's own losses, the same bits by any hint."""

import pytest
import torch
from small import pipelined, plain
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 11, 6
STEPS = 4
SCHEDULES = [("1f1b", "fixed"), ("bf", "ready"), ("zb-h1", "ready"), ("zbv", "ready"), ("interleaved", "ready")]


class Embed(nn.Module):
    """(index, tokens, mask) -> a dict: one tensor that each layer changes, one that goes to the end as it is."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.other = nn.Embedding(WORDS, 3)

    def forward(self, value):
        index, tokens, mask = value
        hidden, skip = self.table(tokens), self.other(tokens).double()
        return {"index": index, "hidden": hidden, "skip": skip, "mask": mask, "tokens": tokens, "nothing": None}


class Mix(nn.Module):
    """Work on `hidden`; the output is not contiguous."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        mask = value["mask"].unsqueeze(-1)
        hidden = value["hidden"] + self.linear(value["hidden"]).tanh() * mask
        return {**value, "hidden": hidden.transpose(0, 2).contiguous().transpose(0, 2)}


class Branch(nn.Module):
    """Use one of two parameters, by micro-batch, and a third one never."""

    def __init__(self):
        super().__init__()
        self.even, self.odd, self.never = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(2, 2)

    def forward(self, value):
        branch = self.odd if value["index"] % 2 else self.even
        return {**value, "hidden": value["hidden"] * branch(value["hidden"]).sigmoid()}


class Bare(nn.Module):
    """No parameters."""

    def forward(self, value):
        return {**value, "hidden": functional.gelu(value["hidden"])}


class Pack(nn.Module):
    """A dict to a tuple and a list within it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, value):
        hidden, skip = value["hidden"] * self.scale, value["skip"]
        return hidden, [skip, value["nothing"], (value["mask"], value["index"])]


class Same(nn.Module):
    """Give everything back as it was."""

    def forward(self, value):
        return value


class Head(nn.Module):
    """A tuple to the scores of words; every third micro-batch leaves `skip` unused."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, WORDS)
        self.project_other = nn.Linear(3, WORDS)

    def forward(self, value):
        hidden, (skip, nothing, (mask, index)) = value
        assert nothing is None
        scores = self.project(hidden)
        if index % 3:
            scores = scores + self.project_other(skip.float())
        return scores, mask


def _model():
    torch.manual_seed(5)
    return [Embed(), Mix(), Branch(), Bare(), Mix(), Pack(), Same(), Head()]


def _loss(output, targets):
    scores, mask = output
    return functional.cross_entropy(scores[mask], targets[mask], reduction="sum") / 100


def _draw(step, microbatch, *, longest=23):
    """Return sequences of another number and length for each micro-batch, now and then none, or empty ones."""
    draws = torch.Generator().manual_seed(100 * step + microbatch)
    rows = int(torch.randint(1, 5, (), generator=draws))
    length = int(torch.randint(1, longest, (), generator=draws))
    if (step + microbatch) % 5 == 4:
        rows = 0
    if (step + microbatch) % 7 == 6:
        length = 0
    tokens = torch.randint(0, WORDS, (rows, length + 1), generator=draws)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    return (microbatch, inputs, torch.rand(inputs.shape, generator=draws) < 0.8), targets


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("microbatches", [6, 3, 1])
def test_structures_and_shapes_that_vary_train_as_in_one_process(comm, microbatches):
    """Whatever the stages are given.

    Lengths that change (DeepSpeed 5696, Megatron-LM 5100), ragged and last batches (MPP-LLaVA 25, slapo 19), branches
    and parameters that are not used (pytorch 43259), whole numbers and no tensor (PiPPy 941), fewer micro-batches than
    stages (torchtitan 775), two stages that are each other's next and previous one (Megatron-LM 1450, 5271).
    """
    stages = min(comm.size, 4)
    sizes = {"steps": STEPS, "microbatches": microbatches}
    losses, parameters = plain(_model, _draw, _loss, **sizes)
    bits = None
    for seed, (hint, dispatch) in enumerate(SCHEDULES):
        found = pipelined(comm, _model, _draw, _loss, stages=stages, hint=hint, dispatch=dispatch, seed=seed, **sizes)
        assert found[0] == pytest.approx(losses, rel=1e-6), hint
        for mine, theirs in zip(found[1], parameters, strict=True):
            torch.testing.assert_close(mine, theirs)
        bits = bits or found
        assert found[0] == bits[0]
        assert all(torch.equal(a, b) for a, b in zip(found[1], bits[1], strict=True)), hint


@pytest.mark.mpi(min_size=2)
def test_unused_parameters_stay_and_their_buckets_are_updated_with_zeros(comm):
    _, parameters = pipelined(
        comm, _model, _draw, _loss, stages=min(comm.size, 4), hint="bf", dispatch="ready", steps=2, microbatches=1
    )
    before = [p.detach() for layer in _model() for p in layer.parameters()]
    names = [f"{i}.{name}" for i, layer in enumerate(_model()) for name, _ in layer.named_parameters()]
    kept = [name for name, a, b in zip(names, before, parameters, strict=True) if torch.equal(a, b)]
    assert kept == [
        "0.other.weight",
        *(f"2.{branch}.{what}" for branch in ("odd", "never") for what in ("weight", "bias")),
        "7.project_other.weight",
        "7.project_other.bias",
    ]


@pytest.mark.mpi(min_size=2)
def test_a_stage_without_parameters_and_frozen_stages_train_what_is_left(comm):
    """The first stage's output wants no gradient, so none comes back."""

    def model():
        torch.manual_seed(2)
        frozen, trained = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)
        return [frozen, nn.ReLU(), trained, nn.Tanh()]

    def draw(step, microbatch):
        draws = torch.Generator().manual_seed(10 * step + microbatch)
        return torch.randn(3, 4, generator=draws), torch.randn(3, 4, generator=draws)

    def loss(output, targets):
        return (output - targets).square().sum() / 10

    sizes = {"steps": 3, "microbatches": 4}
    losses, parameters = plain(model, draw, loss, **sizes)
    for hint in ("bf", "zb-h1"):
        for stages in {2, min(comm.size, 4)}:
            found = pipelined(comm, model, draw, loss, stages=stages, hint=hint, dispatch="ready", **sizes)
            assert found[0] == pytest.approx(losses, rel=1e-6)
            assert torch.allclose(found[1][2], parameters[2])
            assert torch.equal(found[1][0], model()[0].weight)


@pytest.mark.mpi(min_size=2)
def test_hooks_on_received_tensors_fire_once_a_microbatch(comm):
    """A reused buffer must not keep the hooks of an earlier use (pytorch 185331)."""
    fired = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, value):
            value.register_hook(lambda _gradient: fired.append(1))
            return self.linear(value)

    def draw(step, microbatch):
        return torch.ones(1, 2) * (step + microbatch), torch.zeros(1, 2)

    sizes = {"stages": 2, "hint": "bf", "dispatch": "ready", "steps": 4, "microbatches": 3}
    pipelined(comm, lambda: [nn.Linear(2, 2), Watched()], draw, lambda out, _: out.square().sum(), **sizes)
    assert len(fired) == (12 if comm.rank == 1 else 0)
