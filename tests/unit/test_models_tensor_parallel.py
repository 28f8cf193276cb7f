"""Sliced layers and the sliced loss against torch on whole ones; the slices are threads that add up what they have."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from hpcpipe.models import build, gpt_layers, llama_layers, next_token_loss
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.gpt_sliced import sliced_next_token_loss
from hpcpipe.models.rope import Rope
from hpcpipe.models.tensor_parallel import (
    Sliced,
    by_columns,
    by_rows,
    by_vocabulary,
    own_draws,
    slice_of,
    sliced_cross_entropy,
    whole_of,
)


class Threads:
    """One of several threads that sum and gather; autograd works in the calling thread, so a thread is a rank."""

    def __init__(self, index, count, board, barrier):
        self.index, self.count = index, count
        self._board, self._barrier = board, barrier
        self.sums = 0

    def _exchange(self, tensor):
        self._board[self.index] = tensor.detach().clone()
        self._barrier.wait(20)
        found = list(self._board)
        self._barrier.wait(20)
        return found

    def all_reduce(self, tensor):
        self.sums += 1
        total, *others = self._exchange(tensor)
        for other in others:
            total = total + other
        return total

    def all_gather(self, tensor):
        return torch.stack(self._exchange(tensor))


def on_slices(count, work):
    """Return what `work(slices)` gives on every slice, each in a thread of its own."""
    board, barrier = [None] * count, threading.Barrier(count)
    results, errors = [None] * count, []

    def run(index):
        try:
            results[index] = work(Threads(index, count, board, barrier))
        except BaseException as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _layers(tied=False, dropout=0.0):
    return gpt_layers(layers=2, dim=16, heads=4, context=8, vocab_size=12, dropout=dropout, seq_len=8, tied=tied)


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_the_slices_of_a_model_begin_with_the_parameters_of_the_whole_one(count, tied):
    layers = _layers(tied)
    whole = nn.ModuleList(build(layers, range(4), seed=3)).state_dict()

    def built(index):
        alone = Threads(index, count, [], threading.Barrier(1))  # building exchanges nothing
        return dict(nn.ModuleList(build(layers, range(4), seed=3, slices=alone)).named_parameters())

    slices = [built(index) for index in range(count)]
    assert set(slices[0]) == set(whole)
    for name, value in whole.items():
        parts = [each[name] for each in slices]
        sliced = getattr(parts[0], "sliced", None)
        if sliced is None:
            assert "norm" in name or "position" in name or name.endswith("_out.bias")
            assert all(torch.equal(part, value) for part in parts)
        else:
            assert [part.sliced.index for part in parts] == list(range(count))
            assert sum(part.numel() for part in parts) == value.numel()
            assert torch.equal(whole_of([part.detach() for part in parts], sliced), value)


def test_query_key_and_value_are_cut_by_heads():
    rows = torch.arange(24).view(24, 1)  # 3 groups of 4 heads of 2
    first, second = (slice_of(rows, Sliced(0, index, 2, 3)).flatten().tolist() for index in range(2))
    assert first == [0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19]
    assert second == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23]


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="dimension 0 of \\(10, 3\\) cannot be cut into 4 even parts"):
        slice_of(torch.zeros(10, 3), Sliced(0, 0, 4))


@pytest.mark.parametrize("deferred", [False, True])
def test_values_and_gradients_of_sliced_layers_are_those_of_whole_ones(deferred):
    torch.manual_seed(0)
    first, second = nn.Linear(6, 8), nn.Linear(8, 6)
    table = nn.Embedding(10, 6)
    tokens = torch.tensor([[0, 9, 4], [5, 5, 1]])
    whole = nn.ModuleList([table, first, second])
    value = second(functional.gelu(first(table(tokens))))
    weights = torch.randn_like(value)
    expected = torch.autograd.grad((value * weights).sum(), list(whole.parameters()))
    state = whole.state_dict()

    def work(slices):
        mine = nn.ModuleList([nn.Embedding(10, 6), nn.Linear(6, 8), nn.Linear(8, 6)])
        mine.load_state_dict(state)
        by_vocabulary(mine[0], slices)
        by_columns(mine[1], slices)
        by_rows(mine[2], slices)
        parameters = list(mine.parameters())
        if deferred:
            deferrable(mine)
        output = mine[2](functional.gelu(mine[1](mine[0](tokens))))
        if not deferred:
            return output.detach(), torch.autograd.grad((output * weights).sum(), parameters), parameters
        with recording() as pending:
            folded = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
        sums = slices.sums
        gradients = pending.compute(parameters, folded)
        assert slices.sums == sums, "a weight gradient must wait for no other slice"
        assert sum(each is None for each in folded) == 4, "only the bias behind the sum stays with B"
        return output.detach(), gradients, parameters

    results = on_slices(2, work)
    for output, _, _ in results:
        torch.testing.assert_close(output, value.detach())
    for number, gradient in enumerate(expected):
        sliced = getattr(results[0][2][number], "sliced", None)
        parts = [result[1][number] for result in results]
        found = parts[0] if sliced is None else whole_of(parts, sliced)
        torch.testing.assert_close(found, gradient)
        assert sliced is not None or torch.equal(parts[0], parts[1])


@pytest.mark.parametrize(("count", "kv_heads", "bias"), [(2, 2, True), (4, 4, False), (2, 8, False)])
def test_the_slices_of_a_llama_have_the_loss_and_the_gradients_of_the_whole_one(count, kv_heads, bias):
    sizes = {"layers": 2, "dim": 16, "heads": 8, "kv_heads": kv_heads, "mlp_dim": 24, "vocab_size": 12, "seq_len": 8}
    layers = llama_layers(**sizes, rope=Rope(6, 1e4), attention_bias=bias, mlp_bias=bias)
    tokens, targets = torch.randint(12, (2, 8)), torch.randint(12, (2, 8))
    one_by_one = threading.Lock()
    whole = nn.Sequential(*build(layers, range(4), seed=3))
    loss = next_token_loss(whole(tokens), targets, tokens=16)
    expected = dict(zip(dict(whole.named_parameters()), torch.autograd.grad(loss, whole.parameters()), strict=True))

    def work(slices):
        with one_by_one:  # torch's random state is all threads'
            net = nn.Sequential(*build(layers, range(4), seed=3, slices=slices))
        value = net[:3](tokens)
        before = slices.sums
        mine = sliced_next_token_loss(net[3](value), targets, tokens=16, slices=slices)
        gradients = torch.autograd.grad(mine, net.parameters())
        assert slices.sums - before == 1 + 2 * 2, "one of the head, two of a block, however many matrices it has"
        return mine.detach(), dict(zip(dict(net.named_parameters()), gradients, strict=True)), net

    results = on_slices(count, work)
    for each, _, _ in results:
        torch.testing.assert_close(each, loss.detach())
    for name, gradient in expected.items():
        sliced = getattr(results[0][2].get_parameter(name), "sliced", None)
        parts = [gradients[name] for _, gradients, _ in results]
        assert (sliced is None) == ("norm" in name or name.endswith("_out.bias")), name
        torch.testing.assert_close(parts[0] if sliced is None else whole_of(parts, sliced), gradient)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_sliced_loss_is_torch_s_cross_entropy_however_large_the_logits(scale):
    torch.manual_seed(1)
    logits = (torch.randn(7, 12) * scale).requires_grad_()
    targets = torch.tensor([0, 11, 3, 4, -100, 8, 7])
    expected = functional.cross_entropy(logits, targets, reduction="sum")
    (gradient,) = torch.autograd.grad(expected, logits)

    def work(slices):
        mine = logits.detach().chunk(slices.count, dim=1)[slices.index].clone().requires_grad_()
        loss = sliced_cross_entropy(mine, targets, slices)
        return loss.detach(), torch.autograd.grad(loss, mine)[0]

    results = on_slices(4, work)
    torch.testing.assert_close(results[0][0], expected.detach())
    assert len({float(loss) for loss, _ in results}) == 1
    torch.testing.assert_close(torch.cat([each for _, each in results], dim=1), gradient)


def test_the_loss_of_a_micro_batch_is_its_share_of_the_mean():
    logits, targets = torch.randn(2, 3, 8), torch.randint(8, (2, 3))
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / 60

    def work(slices):
        mine = logits.chunk(2, dim=2)[slices.index]
        return sliced_next_token_loss(mine, targets, tokens=60, slices=slices)

    for loss in on_slices(2, work):
        torch.testing.assert_close(loss, expected)


def test_draws_inside_slices_differ_and_those_behind_them_do_not():
    def draws(index):
        class Slice:
            pass

        Slice.index, Slice.count = index, 2
        torch.manual_seed(5)
        before = torch.rand(3)
        with own_draws(Slice, before):
            inside = torch.rand(3)
        return before, inside, torch.rand(3)

    (before, inside, behind), (same, other, alike) = draws(0), draws(1)
    assert torch.equal(before, same)
    assert not torch.equal(inside, other)
    assert torch.equal(behind, alike)
    assert all(torch.equal(a, b) for a, b in zip(draws(1), (same, other, alike), strict=True)), "a repeated forward"
    assert not torch.equal(before, behind)
