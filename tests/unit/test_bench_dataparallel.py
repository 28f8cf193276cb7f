"""The models of `bench dataparallel` have the published parameters; its bounds follow from what they are made of."""

from random import Random

import pytest

from hpcpipe.bench.dataparallel.bound import bound_ms, chain_ms, communication_ms
from hpcpipe.bench.dataparallel.models import MODELS, bert_base, gpt_2, resnet_50, twelve_layers


@pytest.mark.parametrize(
    ("model", "parameters", "tensors"),
    [
        (resnet_50(), 25_557_032, 161),  # torchvision's documentation of ResNet50_Weights
        (bert_base(), 109_482_240, 199),  # BertModel of transformers, bert-base-uncased
        (gpt_2(), 124_439_808, 148),  # GPT2Model of transformers, gpt2
        (twelve_layers(), 12 * (12 * 210**2 + 10 * 210), 132),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_parameters_are_as_many_as_published(model, parameters, tensors):
    assert model.numel == parameters
    assert model.tensors == tensors


def test_a_resnet_50_multiplies_as_often_as_published():
    """4.09 GFLOPS in torchvision's documentation, a multiplication and its addition counted once."""
    assert sum(layer.macs for layer in resnet_50().layers) == pytest.approx(4.09e9, rel=1e-3)


@pytest.mark.parametrize("name", MODELS)
def test_a_smaller_model_has_the_same_tensors_and_computes_for_its_size(name):
    model = MODELS[name]()
    assert model.numel * model.factor == pytest.approx(
        {"12-layers": 6_375_600, "resnet-50": 25_557_032, "bert-base": 109_482_240, "gpt-2": 124_439_808}[name],
        rel=0.001,
    )
    assert 3 * sum(model.forward_ms()) == pytest.approx(model.compute_ms)
    network = communication_ms(model.num_bytes, ranks=2, rate=1e9)
    assert network / model.compute_ms == pytest.approx(1.13, abs=0.01), "as in the twelve layers"


def test_matrices_stay_matrices_and_vectors_vectors_in_a_smaller_model():
    for large, small in zip(bert_base().layers, bert_base().scaled(16).layers, strict=True):
        assert [len(shape) == 1 for shape in large.shapes] == [len(shape) == 1 for shape in small.shapes]


def test_the_bound_is_the_longer_of_computing_and_communicating():
    assert communication_ms(25_000_000, ranks=2, rate=1e9) == pytest.approx(200.0)  # 25 MB out at 125 MB/s
    assert communication_ms(25_000_000, ranks=4, rate=1e9) == pytest.approx(300.0)
    assert bound_ms(25_000_000, compute_ms=180.0, ranks=2, rate=1e9) == pytest.approx(200.0)
    assert bound_ms(25_000_000, compute_ms=180.0, ranks=2, rate=1e10) == 180.0


def test_the_chain_of_equal_layers_is_the_network_and_the_last_layer_or_the_computing_and_the_first_exchange():
    """Twelve layers of 5 + 10 ms, each exchanged in 17 ms at 1 Gbit/s between two ranks."""
    layers, forward = [2_125_000] * 12, [5.0] * 12
    assert chain_ms(layers, forward, ranks=2, rate=1e9) == pytest.approx(12 * 17 + 5 + 10)
    assert chain_ms(layers, forward, ranks=2, rate=1e10) == pytest.approx(180 + 1.7)


def test_computing_after_the_last_parameters_delays_the_chain_too():
    assert chain_ms([10**6, 10**6, 0], [1.0, 1.0, 4.0], ranks=2, rate=1e9) == pytest.approx(16 + 3 * 5)


def test_large_parameters_before_many_layers_stand_between_two_steps_with_the_first_of_these():
    """20 ms of network, before layers of 3 + 6 ms with 6 ms of network each."""
    layers, forward = [2_500_000, *[750_000] * 8], [0.0, *[3.0] * 8]
    assert chain_ms(layers, forward, ranks=2, rate=1e9) == pytest.approx(20 + 6 + 8 * 9)


def test_no_chain_is_shorter_than_the_bound():
    random = Random(1)
    for _ in range(100):
        layers = [random.randrange(1, 10**7) for _ in range(random.randrange(1, 9))]
        forward = [random.uniform(0, 20) for _ in layers]
        ranks, rate = random.randrange(2, 9), random.choice([1e9, 1e10])
        bound = bound_ms(sum(layers), compute_ms=3 * sum(forward), ranks=ranks, rate=rate)
        assert chain_ms(layers, forward, ranks=ranks, rate=rate) >= bound
