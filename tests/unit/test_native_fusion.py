"""Fused flatten and unflatten against numpy's own concatenate."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpcpipe.collective import pack, padded_length, square_sum, unpack

SHAPES = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), max_size=8)


def random_tensors(shapes):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def concatenated(tensors):
    return np.concatenate([np.empty(0, np.float32), *(tensor.ravel() for tensor in tensors)])


@given(SHAPES, st.integers(0, 3), st.booleans())
def test_pack_is_a_concatenation_that_leaves_the_padding_alone(shapes, padding, as_torch):
    tensors = random_tensors(shapes)
    expected = np.concatenate([concatenated(tensors), np.full(padding, 9, np.float32)])
    flat = np.full(len(expected), 9, np.float32)
    pack([torch.from_numpy(tensor) for tensor in tensors] if as_torch else tensors, flat)
    np.testing.assert_array_equal(flat, expected)


@given(SHAPES)
def test_pack_can_add_to_what_is_there(shapes):
    tensors = random_tensors(shapes)
    values = concatenated(tensors)
    flat = np.arange(len(values), dtype=np.float32)
    expected = flat + values
    pack(tensors, flat, accumulate=True)
    np.testing.assert_array_equal(flat, expected)


@given(SHAPES)
def test_unpack_is_the_reverse_of_pack(shapes):
    tensors = random_tensors(shapes)
    flat = concatenated(tensors)
    copies = [np.full_like(tensor, np.nan) for tensor in tensors]
    unpack(torch.from_numpy(flat), copies)
    for copy, tensor in zip(copies, tensors, strict=True):
        np.testing.assert_array_equal(copy, tensor)


def test_parameters_and_their_gradients_go_in_and_out_without_being_tracked():
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    flat = torch.zeros(8)
    pack([parameter.grad for parameter in model.parameters()], flat)
    assert flat.tolist() == [1.0] * 8  # d/dW of sum(Wx + b) at x = 1, and d/db
    unpack(flat, list(model.parameters()))
    assert all(bool((parameter == 1).all()) and parameter.requires_grad for parameter in model.parameters())


TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def every_half(dtype):
    """All 65,536 values of a 16-bit type."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


def awkward(dtype):
    """Numbers of every size and sign, those that halves round to even, infinities and NaN."""
    numbers = torch.randn(50_001, dtype=torch.float64) * 2.0 ** torch.randint(-40, 40, (50_001,))
    edges = [0.0, -0.0, 65504.0, 65519.999, 65520.0, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 1 + 2.0**-11, 1 + 3 * 2.0**-11]
    edges += [2.0**-14, 2.0**-14 - 2.0**-26, 3.4e38, float("inf"), -float("inf"), float("nan")]
    halves = torch.cat([every_half(torch.float16).double(), every_half(torch.bfloat16).double()])
    return torch.cat([numbers, torch.tensor(edges, dtype=torch.float64), halves]).to(dtype)


@pytest.mark.parametrize("into", TYPES)
@pytest.mark.parametrize("given", TYPES)
def test_tensors_of_another_type_are_converted_and_added_as_torch_does_it(given, into):
    tensor = awkward(given)
    if {given, into} <= {torch.float64, torch.float16, torch.bfloat16} and given is torch.float64:
        tensor = tensor.float().double()  # torch, too, goes from 64 to 16 bits by way of 32
    flat = torch.empty(len(tensor), dtype=into)
    pack([tensor], flat)
    assert_same_numbers(flat, tensor.to(into))
    flat = awkward(into).flip(0)
    expected = flat.clone() + tensor.to(torch.promote_types(into, torch.float32)).to(
        torch.float64 if into is torch.float64 else torch.float32
    )
    pack([tensor], flat, accumulate=True)
    assert_same_numbers(flat, expected.to(into))


def assert_same_numbers(ours, theirs):
    """Same bits, but for NaN, which may carry any payload."""
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    whole = ~ours.isnan()
    assert torch.equal(torch.signbit(ours[whole]), torch.signbit(theirs[whole]))


def test_denormal_halves_are_exact_where_the_processor_flushes_denormal_floats():
    halves = every_half(torch.float16)
    halves = halves[halves.isfinite()]
    expected, flat = halves.float(), torch.empty(len(halves))
    torch.set_flush_denormal(True)
    try:
        pack([halves], flat)
        back = torch.empty_like(halves)
        unpack(flat, [back])
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(flat, expected)
    assert torch.equal(back.view(torch.int16), halves.view(torch.int16))


def test_tensors_that_do_not_fit_are_refused_before_anything_is_written():
    flat = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match="2 tensors with 6 elements together do not fit a flat buffer of 5"):
        pack([np.ones(3, np.float32), np.ones(3, np.float32)], flat)
    assert not flat.any()
    with pytest.raises(ValueError, match="do not fit"):
        unpack(flat, [np.ones(6, np.float32)])


@pytest.mark.parametrize(
    ("tensor", "error", "sentence"),
    [
        (np.ones(2, np.int32), TypeError, "tensor 1 .* must be float32, float64, float16 or bfloat16"),
        (torch.ones(2, dtype=torch.int16), TypeError, "tensor 1 .* must be float32"),
        (np.ones((4, 4), np.float32)[:, :2], ValueError, "tensor 1 is not contiguous"),
        (torch.ones(2, 4).T, ValueError, "tensor 1 is not contiguous"),
        (torch.ones(1).expand(4), ValueError, "tensor 1 is not contiguous"),
        ([1.0], TypeError, r"tensor 1 \(list\) is not a"),
        (None, TypeError, "tensor 1"),
    ],
)
def test_what_cannot_be_copied_as_it_lies_is_refused_by_its_place_in_the_list(tensor, error, sentence):
    with pytest.raises(error, match=sentence):
        pack([np.ones(1, np.float32), tensor], np.zeros(20, np.float32))


def test_a_read_only_array_can_be_read_and_not_written():
    constant = np.frombuffer(np.ones(2, np.float32).tobytes(), np.float32)
    flat = np.zeros(2, np.float32)
    pack([constant], flat)
    assert flat.tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"tensor 0 .* not a writable"):
        unpack(flat, [constant])


@pytest.mark.parametrize(
    ("length", "parts", "expected"),
    [(0, 3, 0), (1, 1, 1), (1, 4, 4), (4, 4, 4), (5, 4, 8), (1 << 40, 3, (1 << 40) + 2)],
)
def test_padded_length_is_the_next_multiple(length, parts, expected):
    assert padded_length(length, parts) == expected


@pytest.mark.parametrize(("length", "parts"), [(-1, 2), (3, 0)])
def test_padded_length_refuses_what_has_no_multiple(length, parts):
    with pytest.raises(ValueError, match="cannot pad"):
        padded_length(length, parts)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_sum_of_squares_is_torch_s_in_double_precision_and_has_the_same_bits_wherever_the_numbers_lie(dtype):
    numbers = torch.randn(5001, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = square_sum(numbers)
    assert found == pytest.approx(float(numbers.double().square().sum()), rel=1e-12)
    for begin in range(1, 9):
        moved = torch.zeros(5010, dtype=dtype)[begin : begin + 5001].copy_(numbers)
        assert square_sum(moved) == found


def test_a_square_beyond_fp32_is_no_infinity_and_what_is_no_number_stays_none():
    assert square_sum(np.array([1e30, 1e-30], np.float32)) == pytest.approx(1e60, rel=1e-6)
    assert np.isnan(square_sum(np.array([1.0, np.nan], np.float32)))
    assert square_sum(np.array([np.inf], np.float32)) == np.inf
    assert square_sum(np.zeros(0, np.float32)) == 0.0
