"""Each deferrable layer against torch's own backward, by bits, over shapes, memory layouts, types and frozen parts."""

import pytest
import torch
from deferred_layers import assert_split_has_the_bits_of_unsplit, one_thread
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hpcpipe.models import deferred_ops

pytestmark = pytest.mark.usefixtures(one_thread.__name__)

DTYPES = st.sampled_from([torch.float32, torch.bfloat16, torch.float64])
EPS = st.sampled_from([1e-6, 1e-2])


@st.composite
def tensors(draw, shape, dtype=torch.float32):
    """A random tensor: contiguous, with dimensions in another order in memory, or every other element."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    order = draw(st.permutations(range(len(shape))))
    value = torch.randn([shape[i] for i in order], generator=generator).to(dtype)
    value = value.permute([order.index(i) for i in range(len(shape))])
    if draw(st.booleans()):
        value = torch.stack([value, value], dim=-1)[..., 1]
    return value


@st.composite
def gradients_like(draw, output_shape, dtype):
    """A gradient of an output: as `tensors`, or one number expanded, which is what a sum sends back."""
    if draw(st.booleans()):
        return torch.full((), 0.75, dtype=dtype).expand(output_shape)
    return draw(tensors(output_shape, dtype))


def freeze(module: nn.Module, frozen: list[bool]) -> nn.Module:
    """Freeze some parameters, but not all."""
    parameters = list(module.parameters())
    for parameter, is_frozen in zip(parameters, frozen, strict=False):
        parameter.requires_grad_(not is_frozen)
    if not any(parameter.requires_grad for parameter in parameters):
        parameters[0].requires_grad_(True)
    return module


FROZEN = st.lists(st.booleans(), min_size=2, max_size=2)


@given(data=st.data())
def test_linear_splits_bit_for_bit(data):
    dtype = data.draw(DTYPES)
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    inputs, outputs = data.draw(st.sampled_from([1, 2, 7, 64])), data.draw(st.sampled_from([1, 3, 48]))
    module = nn.Linear(inputs, outputs, bias=data.draw(st.booleans()), dtype=dtype)
    if data.draw(st.booleans()):
        module.weight = nn.Parameter(module.weight.detach().t().contiguous().t())
    value = data.draw(tensors([*shape, inputs], dtype)).requires_grad_(data.draw(st.booleans()))
    gradient = data.draw(gradients_like([*shape, outputs], dtype))
    assert_split_has_the_bits_of_unsplit(freeze(module, data.draw(FROZEN)), value, lambda _: gradient)


@given(data=st.data())
def test_embedding_splits_bit_for_bit(data):
    dtype = data.draw(DTYPES)
    shape = data.draw(st.lists(st.integers(0, 6), max_size=3))
    module = nn.Embedding(
        5,
        data.draw(st.sampled_from([1, 3, 32])),
        padding_idx=data.draw(st.sampled_from([None, 0, 3, -1])),
        scale_grad_by_freq=data.draw(st.booleans()),
        dtype=dtype,
    )
    integers = data.draw(st.sampled_from([torch.int32, torch.int64]))
    indices = data.draw(tensors(shape)).mul(7).to(integers).remainder(5)
    gradient = data.draw(gradients_like([*shape, module.embedding_dim], dtype))
    assert_split_has_the_bits_of_unsplit(module, indices, lambda _: gradient)


@given(data=st.data())
def test_layer_norm_splits_bit_for_bit(data):
    dtype = data.draw(DTYPES)
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    normalised = data.draw(st.sampled_from([(1,), (6,), (64,), (3, 5)]))
    module = nn.LayerNorm(normalised, eps=data.draw(EPS), bias=data.draw(st.booleans()))
    module = module.to(torch.float64 if dtype == torch.float64 else data.draw(st.sampled_from([dtype, torch.float32])))
    nn.init.normal_(module.weight)
    value = data.draw(tensors([*shape, *normalised], dtype)).requires_grad_(data.draw(st.booleans()))
    gradient = data.draw(gradients_like(value.shape, dtype))
    assert_split_has_the_bits_of_unsplit(freeze(module, data.draw(FROZEN)), value, lambda _: gradient)


@given(data=st.data())
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_rms_norm_splits_bit_for_bit(data):
    dtype = data.draw(DTYPES)
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    normalised = data.draw(st.sampled_from([(1,), (6,), (64,), (3, 5)]))
    module = nn.RMSNorm(normalised, eps=data.draw(st.one_of(st.none(), EPS)), dtype=data.draw(DTYPES))
    nn.init.normal_(module.weight)
    value = data.draw(tensors([*shape, *normalised], dtype)).requires_grad_(data.draw(st.booleans()))
    gradient = data.draw(gradients_like(value.shape, dtype))
    assert_split_has_the_bits_of_unsplit(module, value, lambda _: gradient)


@given(data=st.data())
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_conv2d_splits_bit_for_bit(data):
    dtype = data.draw(DTYPES)
    groups = data.draw(st.sampled_from([1, 2, 4]))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    padding = data.draw(st.one_of(st.sampled_from(["same", "valid"]), st.tuples(st.integers(0, 2), st.integers(0, 2))))
    module = nn.Conv2d(
        4,
        4 * data.draw(st.integers(1, 2)),
        data.draw(pair),
        stride=1 if padding == "same" else data.draw(pair),
        padding=padding,
        dilation=data.draw(pair),
        groups=groups,
        bias=data.draw(st.booleans()),
        padding_mode=data.draw(st.sampled_from(["zeros", "zeros", "reflect", "circular"])),
        dtype=dtype,
    )
    batch = data.draw(st.sampled_from([[], [1], [3]]))
    value = data.draw(tensors([*batch, 4, 9, 8], dtype)).requires_grad_(data.draw(st.booleans()))
    gradient = data.draw(gradients_like(module(value).shape, dtype))
    assert_split_has_the_bits_of_unsplit(freeze(module, data.draw(FROZEN)), value, lambda _: gradient)


LARGE = {
    "linear": (lambda: nn.Linear(128, 512), (4, 64, 128)),
    "head": (lambda: nn.Linear(128, 1000, bias=False), (4, 64, 128)),
    "layer norm": (lambda: nn.LayerNorm(128), (4, 64, 128)),
    "RMS norm": (lambda: nn.RMSNorm(128), (4, 64, 128)),
    "patches": (lambda: nn.Conv2d(3, 32, 16, stride=16).to(memory_format=torch.channels_last), (4, 3, 64, 64)),
    "3 x 3": (lambda: nn.Conv2d(16, 32, 3, padding=1), (4, 16, 14, 14)),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LARGE)
def test_layers_of_a_models_size_split_bit_for_bit_on_one_thread_and_two(name, dtype, threads):
    make, shape = LARGE[name]
    torch.set_num_threads(threads)
    assert_split_has_the_bits_of_unsplit(make().to(dtype), torch.randn(shape, dtype=dtype, requires_grad=True))


def doubles(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


OPERATIONS = {
    "linear": lambda: (deferred_ops.linear, (doubles(2, 3, 4), doubles(3, 4), doubles(3))),
    "linear of transposed rows": lambda: (
        lambda value, *rest: deferred_ops.linear(value.transpose(0, 1), *rest),
        (doubles(3, 2, 4), doubles(3, 4), doubles(3)),
    ),
    "embedding": lambda: (
        lambda weight: deferred_ops.embedding(torch.tensor([[0, 2], [2, 3]]), weight, -1, False),
        (doubles(4, 3),),
    ),
    "convolution": lambda: (
        lambda *tensors: deferred_ops.convolution(*tensors, (2, 1), (1, 0), (1, 2), 2),
        (doubles(1, 4, 2, 3), doubles(2, 2, 2, 2), doubles(2)),
    ),
    "layer norm": lambda: (
        lambda *tensors: deferred_ops.layer_norm(*tensors, eps=1e-3),
        (doubles(3, 4), [4], doubles(4), doubles(4)),
    ),
    "RMS norm": lambda: (
        lambda value, weight: deferred_ops.rms_norm(value, [4], weight, 1e-3),
        (doubles(3, 4), doubles(4)),
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_first_and_second_derivatives_agree_with_finite_differences(name):
    torch.manual_seed(0)
    operation, arguments = OPERATIONS[name]()
    assert torch.autograd.gradcheck(operation, arguments)
    assert torch.autograd.gradgradcheck(operation, arguments)
