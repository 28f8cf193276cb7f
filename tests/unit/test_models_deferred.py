"""Split backwards of whole modules: every weight gradient arrives, once, with torch's own bits, whenever W runs."""

import copy
import pickle
import threading

import pytest
import torch
from deferred_layers import assert_split_has_the_bits_of_unsplit, one_thread, same_bits, split, trained, unsplit
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from hpcpipe.models import build, gpt_layers
from hpcpipe.models.deferred import deferrable, recording

pytestmark = pytest.mark.usefixtures(one_thread.__name__)


def perceptron(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5)).to(dtype)


def backward(module: nn.Module, value: Tensor):
    """Return what is pending, the parameters and their gradients so far, after B of the output's sum."""
    parameters = trained(module)
    output = module(value)
    with recording() as pending:
        folded = torch.autograd.grad(output, parameters, torch.ones_like(output), allow_unused=True)
    return pending, parameters, folded


def grads_are_the_same(module: nn.Module, twin: nn.Module) -> bool:
    pairs = zip(module.parameters(), twin.parameters(), strict=True)
    return all(same_bits(one.grad, other.grad) for one, other in pairs)


def gpt(dtype: torch.dtype, dropout: float) -> nn.Module:
    layers = gpt_layers(layers=2, dim=32, heads=4, context=16, vocab_size=50, dropout=dropout, seq_len=16)
    return nn.Sequential(*build(layers, range(len(layers)), seed=5)).to(dtype)


# ---- the bits


def test_the_split_gives_the_grad_of_the_fused_backward():  # pytorch/pytorch#153833: the weights got none
    module = perceptron()
    twin, _ = deferrable(copy.deepcopy(module))
    for seed in range(3):
        value = torch.randn(4, 6, generator=torch.Generator().manual_seed(seed))
        module(value).sum().backward()
        pending, parameters, folded = backward(twin, value)
        assert folded == (None,) * len(parameters)
        for parameter, gradient in zip(parameters, pending.compute(parameters, folded), strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
    assert grads_are_the_same(module, twin)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_parameter_of_the_bundled_gpt_waits_for_w(dtype, dropout):
    tokens = torch.randint(0, 50, (3, 16), generator=torch.Generator().manual_seed(1))
    module = gpt(dtype, dropout)
    assert_split_has_the_bits_of_unsplit(module, tokens)
    module, notices = deferrable(module)
    pending, _, folded = backward(module, tokens)
    assert not notices
    assert all(gradient is None for gradient in folded)
    assert pending.num_bytes > 0


class Shared(nn.Module):
    """One layer used three times and an embedding whose table is the head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        value = self.table(tokens)
        for _ in range(3):
            value = value + self.layer(value).tanh()
        return self.head(value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_parameter_used_several_times_is_summed_in_autograds_order(dtype):
    assert_split_has_the_bits_of_unsplit(Shared().to(dtype), torch.randint(0, 11, (4, 9)))


class Direct(nn.Module):
    """Uses its child's weight without calling the child, as models with tied heads often do."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.times = times

    def forward(self, tokens: Tensor) -> Tensor:
        value = self.table(tokens)
        for _ in range(self.times):
            value = functional.linear(functional.linear(value, self.table.weight).tanh(), self.table.weight.t())
        return functional.linear(value, self.table.weight)


def test_a_weight_that_another_layer_uses_directly_gets_both_shares():
    tokens = torch.randint(0, 11, (4, 9))
    assert_split_has_the_bits_of_unsplit(Direct(0), tokens)
    module = Direct(2)
    twin, _ = deferrable(copy.deepcopy(module))
    _, (_, wanted) = unsplit(module, tokens, torch.ones_like)
    _, (_, gradient) = split(twin, tokens, torch.ones_like)
    torch.testing.assert_close(gradient, wanted)  # five direct uses are summed before the deferred one


def test_an_activation_changed_in_place_keeps_the_bits():
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True))
    assert_split_has_the_bits_of_unsplit(module, torch.randn(1, 5, 6, requires_grad=True))


def test_a_parameter_that_a_step_does_not_use_has_the_gradient_none():
    module = nn.ModuleDict({"used": nn.Linear(3, 3), "unused": nn.Linear(3, 3)})
    deferrable(module)
    value = torch.randn(2, 3)
    with recording() as pending:
        folded = torch.autograd.grad(module["used"](value).sum(), trained(module), allow_unused=True)
    gradients = pending.compute(trained(module), folded)
    assert [gradient is None for gradient in gradients] == [False, False, True, True]


def test_a_layer_whose_output_nothing_needs_gives_none_as_in_torch():
    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, kept, dropped):  # noqa: ARG004
            return kept.clone()

        @staticmethod
        def backward(ctx, gradient):  # noqa: ARG004
            return gradient, None

    for layer in (nn.Linear(4, 4), nn.LayerNorm(4), nn.RMSNorm(4), nn.Embedding(5, 4), nn.Conv2d(2, 2, 1)):
        value = torch.ones(2, 2, 4, 4) if isinstance(layer, nn.Conv2d) else torch.ones(3, 4)
        value = value.long() if isinstance(layer, nn.Embedding) else value
        kept = torch.ones(1, requires_grad=True)
        deferrable(layer)
        with recording() as pending:
            folded = torch.autograd.grad(Cut.apply(kept, layer(value)), [kept, *trained(layer)], allow_unused=True)
        assert pending.compute(trained(layer), folded[1:]) == [None] * len(trained(layer))


def test_frozen_parameters_get_none_and_cost_nothing():
    module = perceptron()
    module[0].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    module[3].weight.requires_grad_(False)
    assert_split_has_the_bits_of_unsplit(module, torch.randn(4, 6, requires_grad=True))
    module.requires_grad_(False)
    deferrable(module)
    value = torch.randn(4, 6, requires_grad=True)
    with recording() as pending:
        torch.autograd.grad(module(value).sum(), value)
    assert pending.num_bytes == 0


# ---- when W runs


def test_micro_batches_may_be_computed_in_any_order_while_others_are_pending():
    module = perceptron()
    values = [torch.randn(2, 6) for _ in range(4)]
    wanted = [unsplit(module, value, torch.ones_like)[1][1:] for value in values]
    deferrable(module)
    held = [backward(module, value) for value in values]
    for microbatch in (2, 0, 3, 1):
        pending, parameters, folded = held[microbatch]
        gradients = pending.compute(parameters, folded)
        assert all(same_bits(one, other) for one, other in zip(gradients, wanted[microbatch], strict=True))


def test_w_may_run_after_the_micro_batchs_tensors_are_gone_and_only_once():
    module, _ = deferrable(perceptron())
    pending, parameters, folded = backward(module, torch.randn(2, 6))
    assert all(gradient is not None for gradient in pending.compute(parameters, folded))
    with pytest.raises(RuntimeError, match="computed already"):
        pending.compute(parameters, folded)


def test_only_the_gradients_of_the_given_parameters_are_returned_in_their_order():
    module, _ = deferrable(perceptron())
    pending, parameters, _ = backward(module, torch.randn(2, 6))
    first, last = pending.compute([parameters[-1], parameters[0]])
    assert first.shape == parameters[-1].shape
    assert last.shape == parameters[0].shape


def test_what_is_pending_is_counted_in_bytes_each_storage_once():
    module, _ = deferrable(nn.Linear(4, 3))
    value = torch.randn(2, 4)
    gradient = torch.randn(2, 3)
    with recording() as pending:
        torch.autograd.grad([module(value), module(value)], trained(module), [gradient, gradient], allow_unused=True)
    assert pending.num_bytes == 4 * (value.numel() + gradient.numel())
    pending.compute(trained(module))
    assert pending.num_bytes == 0


def test_an_input_that_is_overwritten_before_w_is_an_error():
    module, _ = deferrable(nn.Linear(4, 3))
    value = torch.randn(2, 4)
    pending, parameters, folded = backward(module, value)
    value.zero_()
    with pytest.raises(RuntimeError, match=r"shape \(2, 4\).*changed in place"):
        pending.compute(parameters, folded)


# ---- what a recording leaves alone


def test_outside_a_recording_backward_fills_grad_as_torch_does():
    module = perceptron()
    twin, _ = deferrable(copy.deepcopy(module))
    value = torch.randn(4, 6)
    for each in (module, twin):
        each(value).square().sum().backward()
    assert grads_are_the_same(module, twin)


def test_an_exception_in_b_leaves_no_recording_open():
    module, _ = deferrable(perceptron())
    with pytest.raises(ZeroDivisionError), recording():
        raise ZeroDivisionError
    module(torch.randn(2, 6)).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())
    pending, parameters, folded = backward(module, torch.randn(2, 6))
    assert all(gradient is not None for gradient in pending.compute(parameters, folded))


def test_a_recording_in_a_recording_is_refused():
    with recording(), pytest.raises(RuntimeError, match="open in this thread already"), recording():
        pass


def test_threads_record_apart():
    module, _ = deferrable(nn.Linear(4, 3))
    both_open = threading.Barrier(2, timeout=30)
    sizes = {}

    def run(rows: int) -> None:
        output = module(torch.randn(rows, 4))
        with recording() as pending:
            both_open.wait()
            torch.autograd.grad(output, trained(module), torch.randn(rows, 3), allow_unused=True)
            both_open.wait()
        sizes[rows] = pending.num_bytes

    threads = [threading.Thread(target=run, args=(rows,)) for rows in (2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sizes == {rows: 4 * rows * (4 + 3) for rows in (2, 5)}


def test_what_autograd_runs_in_a_thread_of_its_own_is_recorded_too():
    """CUDA's backward runs in such a thread; so does, on every device, one that is nested very deep."""
    module, _ = deferrable(nn.Linear(4, 3))
    caller = threading.get_ident()
    runners = []

    class Nested(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value, depth):
            ctx.depth = depth
            return value.clone()

        @staticmethod
        def backward(ctx, gradient):
            with torch.enable_grad():
                if ctx.depth:
                    Nested.apply(torch.ones(1, requires_grad=True), ctx.depth - 1).backward()
                else:
                    runners.append(threading.get_ident())
                    output = module(torch.ones(2, 4)).sum()
                    assert torch.autograd.grad(output, trained(module), allow_unused=True) == (None, None)
            return gradient, None

    output = Nested.apply(torch.ones(1, requires_grad=True), 80)
    with recording() as pending:
        output.backward()
    assert len(runners) == 1
    assert runners != [caller]
    of_weight, of_bias = pending.compute(trained(module))
    assert of_weight.tolist() == [[2.0] * 4] * 3
    assert of_bias.tolist() == [2.0] * 3


def test_a_gradient_of_a_gradient_is_right_in_a_recording_too():
    module, _ = deferrable(nn.Linear(4, 3).double())
    value = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    with recording() as pending:
        (slope,) = torch.autograd.grad(module(value).square().sum(), value, create_graph=True)
        folded = torch.autograd.grad(slope.square().sum(), [module.weight])
    (gradient,) = pending.compute([module.weight], folded)

    def penalty(weight: Tensor) -> Tensor:
        return (2 * functional.linear(value, weight, module.bias) @ weight).square().sum()

    wanted = torch.autograd.functional.jacobian(penalty, module.weight.detach())
    torch.testing.assert_close(gradient, wanted)


def test_under_autocast_the_gradients_come_at_once_and_right():
    module = perceptron()
    twin, _ = deferrable(copy.deepcopy(module))
    value = torch.randn(4, 6)
    for each in (module, twin):
        with torch.autocast("cpu", torch.bfloat16):
            output = each(value)
        output.float().sum().backward()
    assert grads_are_the_same(module, twin)


# ---- a user's own modules


class Gain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((8,), 0.5))
        self.shift = nn.Parameter(torch.zeros(8), requires_grad=False)

    def forward(self, value: Tensor) -> Tensor:
        return value * self.gain + self.shift


class TwiceLinear(nn.Linear):
    def forward(self, value: Tensor) -> Tensor:
        return 2 * super().forward(value)


def test_parameters_of_unknown_layers_are_folded_and_named():
    model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(Gain(), nn.ReLU(), TwiceLinear(8, 8)), nn.LayerNorm(8))
    assert_split_has_the_bits_of_unsplit(model, torch.randn(4, 6, requires_grad=True))
    model, notices = deferrable(model)
    (notice,) = notices
    assert "1.0.gain (Gain), 1.2.weight (TwiceLinear), 1.2.bias (TwiceLinear) are computed" in notice
    assert "shift" not in notice
    assert deferrable(model) == (model, notices)
    _, _, folded = backward(model, torch.randn(4, 6))
    assert [gradient is None for gradient in folded] == [True, True, False, False, False, True, True]


def test_a_notice_stays_readable_with_many_parameters():
    _, (notice,) = deferrable(nn.ModuleList(Gain() for _ in range(30)))
    assert "7.gain (Gain) and 22 more" in notice


@pytest.mark.parametrize(
    "make",
    [
        lambda: parametrizations.weight_norm(nn.Linear(6, 8)),
        lambda: parametrizations.spectral_norm(nn.Linear(6, 8)),
        lambda: nn.TransformerEncoderLayer(6, 2, 16, batch_first=True),
        lambda: nn.Sequential(nn.LSTM(6, 8), Unpack()),
    ],
    ids=["weight norm", "spectral norm", "transformer encoder", "LSTM"],
)
def test_torchs_composite_layers_keep_their_bits(make):
    torch.manual_seed(2)
    assert_split_has_the_bits_of_unsplit(make(), torch.randn(3, 4, 6, requires_grad=True))


class Unpack(nn.Module):
    def forward(self, value: tuple) -> Tensor:
        return value[0]


def test_a_forward_of_its_own_and_embeddings_with_other_rules_are_left_alone():
    odd = nn.Linear(6, 6)
    odd.forward = lambda value: functional.linear(value, odd.weight).tanh()
    model = nn.ModuleDict(
        {"odd": odd, "sparse": nn.Embedding(5, 6, sparse=True), "bounded": nn.Embedding(5, 6, max_norm=1.0)}
    )
    _, (notice,) = deferrable(model)
    for name in ("odd.weight (Linear)", "sparse.weight (Embedding)", "bounded.weight (Embedding)"):
        assert name in notice
    assert {type(layer) for layer in model.values()} == {nn.Linear, nn.Embedding}


def test_modules_keep_their_parameters_names_hooks_and_copies():
    module = perceptron()
    parameters, names = list(module.parameters()), list(module.state_dict())
    seen = []
    module[0].register_forward_hook(lambda *_: seen.append("forward"))
    module[0].register_full_backward_hook(lambda *given: seen.append(given[2][0].shape))
    same, _ = deferrable(module)
    assert same is module
    assert isinstance(module[0], nn.Linear)
    assert all(one is other for one, other in zip(module.parameters(), parameters, strict=True))
    assert list(module.state_dict()) == names
    split(module, torch.randn(2, 6, requires_grad=True), torch.ones_like)
    assert seen == ["forward", torch.Size([2, 16])]
    for twin in (copy.deepcopy(module[2:]), pickle.loads(pickle.dumps(module[2:]))):
        assert_split_has_the_bits_of_unsplit(twin, torch.randn(2, 16))


def test_a_hook_on_a_parameter_sees_the_whole_gradient_once():
    module, _ = deferrable(nn.Linear(3, 3))
    seen = []
    module.weight.register_hook(lambda gradient: seen.append(gradient.clone()))
    value = torch.ones(2, 3)
    output = module(module(value))
    with recording() as pending:
        folded = torch.autograd.grad(output.sum(), trained(module), allow_unused=True)
    gradients = pending.compute(trained(module), folded)
    assert len(seen) == 1
    assert same_bits(seen[0], gradients[0])


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_a_legacy_backward_hook_still_sees_the_nodes_it_expects():
    module = nn.Linear(3, 4)
    seen = []
    module.register_backward_hook(lambda *given: seen.append([each.shape for each in given[1]]))
    module, (notice,) = deferrable(module)
    assert "weight (Linear), bias (Linear)" in notice
    module(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert len(seen) == 1
    assert torch.Size([3, 4]) in seen[0]  # addmm's gradient of the transposed weight
