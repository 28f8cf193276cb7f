"""The packed vision-language model against one written down record by record, and what pipelines ask of its layers."""

from dataclasses import replace

import numpy as np
import picture_records
import pytest
import torch
import vlm_reference
from picture_records import RECORDS, write_lines
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hpcpipe.data import Geometry, ImageRecords, ImageTextOrder, image_text_batches
from hpcpipe.models import Load, VlmSizes, build, cut, layer_costs, text_loss, vlm_layers
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.recompute import run_layers
from hpcpipe.models.vit import positions
from hpcpipe.plan import Placement

SIZES = VlmSizes(
    patch=4,
    channels=3,
    merge=2,
    encoder_layers=2,
    encoder_dim=16,
    encoder_heads=2,
    layers=2,
    dim=24,
    heads=3,
    context=96,
    vocab_size=258,
)
GEOMETRY = Geometry(patch=4, merge=2, channels=3, max_side=64, shrink=False)
MEAN = Load(40.0, 900.0, 10.0, 30.0, 1000.0, 15.0)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _model(sizes=SIZES, seed=3):
    layers = vlm_layers(sizes, MEAN)
    modules = build(layers, range(len(layers)), seed=seed)
    draws = torch.Generator().manual_seed(1)
    with torch.no_grad():  # so that norms and biases count too, and attention is far from even
        for parameter in (p for module in modules for p in module.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws))
    named = {f"{layer.name}.{n}": p for layer, m in zip(layers, modules, strict=True) for n, p in m.named_parameters()}
    return modules, named


def _batch(folder, size):
    """Return the micro-batches of one step over all records, and the same records as pictures and parts of text."""
    records = ImageRecords(write_lines(folder), GEOMETRY, context=96)
    order = ImageTextOrder(records, seed=0, microbatches=len(RECORDS) // size, microbatch_size=size, replicas=1)
    batches = image_text_batches(order, replica=0, steps=9)
    batches.load(0)
    plain = []
    for microbatch in order.step(0)[0].tolist():
        plain.append([])
        for number in microbatch:
            pictures, text = RECORDS[number]
            parts = text.split("<image>")
            parts = [""] * len(pictures) + parts if len(parts) == 1 else parts
            arrays = [picture_records.pixels(w, h, seed=[number, i]) for i, (w, h) in enumerate(pictures)]
            plain[-1].append((arrays, parts))
    return batches, plain


@pytest.mark.parametrize("size", [1, 2, 8])
def test_packed_records_have_the_loss_and_the_gradients_of_each_record_by_itself(tmp_path, size):
    modules, named = _model()
    batches, plain = _batch(tmp_path, size)
    count = batches.targets(0).total
    assert count == sum(len(text.replace("<image>", "").encode()) + 1 for _, text in RECORDS)
    loss = sum(
        text_loss(run_layers(modules, batches.inputs(i)), batches.targets(i).targets) / count
        for i in range(len(RECORDS) // size)
    )
    expected = vlm_reference.loss_of(named, SIZES, [record for group in plain for record in group], count)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    parameters = list(named.values())
    ours, theirs = torch.autograd.grad(loss, parameters), torch.autograd.grad(expected, parameters)
    for name, a, b in zip(named, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_logits_are_those_of_the_record_by_itself_in_any_company(tmp_path):
    modules, named = _model()
    batches, plain = _batch(tmp_path, 8)
    inputs, targets = batches.inputs(0), batches.targets(0)
    expected, labels = [], []
    for pictures, parts in plain[0]:
        logits, tokens = vlm_reference.logits_of(named, SIZES, pictures, parts)
        counted = [place for place, token in enumerate(tokens) if place and token is not None]
        expected.append(logits[[place - 1 for place in counted]])
        labels += [tokens[place] for place in counted]
    torch.testing.assert_close(run_layers(modules, inputs), torch.cat(expected), rtol=1e-5, atol=1e-5)
    assert targets.targets.tolist() == labels


def test_a_microbatch_without_any_image_has_gradients_of_zero_in_the_encoder(tmp_path):
    modules, named = _model()
    records = ImageRecords(write_lines(tmp_path, [([], "no"), ([], "image")]), GEOMETRY, context=96)
    batches = image_text_batches(
        ImageTextOrder(records, seed=0, microbatches=1, microbatch_size=2, replicas=1), replica=0, steps=9
    )
    batches.load(0)
    loss = text_loss(run_layers(modules, batches.inputs(0)), batches.targets(0).targets)
    gradients = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    assert all(not gradients[name].any() for name in named if name.startswith(("encoder", "patches")))
    assert gradients["language.0.block.mlp_in.weight"].any()


def test_every_layer_puts_its_weight_gradients_off_and_leaves_the_same_bits(tmp_path):
    modules, named = _model()
    batches, _ = _batch(tmp_path, 4)
    parameters = list(named.values())

    def gradients(**options):
        loss = text_loss(run_layers(modules, batches.inputs(1), **options), batches.targets(1).targets)
        with recording() as pending:
            folded = torch.autograd.grad(loss, parameters, allow_unused=True)
        return pending.compute(parameters, folded), folded

    plain, _ = gradients()
    notices = [notice for module in modules for notice in deferrable(module)[1]]
    assert notices == []
    late, at_once = gradients()
    assert all(gradient is None for gradient in at_once)
    again, _ = gradients(recompute=[range(1, 3), range(3, 6)])
    for name, a, b, c in zip(named, plain, late, again, strict=True):
        assert torch.equal(a, b), name
        assert torch.equal(a, c), name


def test_a_chain_is_cut_by_what_the_records_cost_not_by_the_number_of_blocks():
    sizes = replace(SIZES, encoder_layers=6, layers=6)
    pictures = Load(400.0, 40_000.0, 100.0, 130.0, 17_000.0, 20.0)
    words = Load(4.0, 16.0, 1.0, 130.0, 17_000.0, 20.0)
    for mean, stages_of_the_encoder in ((pictures, {0, 1}), (words, {0})):
        layers, placement = vlm_layers(sizes, mean), Placement(3)
        pieces = cut(layers, placement, "auto")
        there = {s for s, piece in enumerate(pieces) for i in piece if layers[i].name.startswith("encoder")}
        assert there == stages_of_the_encoder
        costs = [sum(layers[i].cost for i in piece) for piece in pieces]
        others = [[sum(layers[i].cost for i in p) for p in cut(layers, placement, split)] for split in _splits(13, 3)]
        assert max(costs) == pytest.approx(min(max(other) for other in others))


def _splits(blocks, stages):
    """Yield all ways to cut blocks into stages."""
    if stages == 1:
        yield [blocks]
        return
    for first in range(1, blocks - stages + 2):
        for rest in _splits(blocks - first, stages - 1):
            yield [first, *rest]


def test_costs_of_layers_are_their_multiply_adds(tmp_path):
    """torch counts two operations a multiply-add; of attention only where it is written out as products."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    modules, _ = _model()
    batches, plain = _batch(tmp_path, 4)
    lengths = batches.inputs(0)["lengths"]
    patches = [h * w // 16 for pictures, _ in plain[0] for h, w, _ in (p.shape for p in pictures)]
    load = Load(
        sum(patches),
        sum(n * n for n in patches),
        sum(patches) / 4,
        sum(lengths),
        sum(n * n for n in lengths),
        len(batches.targets(0).targets),
    )
    value = batches.inputs(0)
    for module, cost in zip(modules, layer_costs(SIZES, load), strict=True):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            value = module(value)
        assert counter.get_total_flops() == pytest.approx(2 * cost, rel=1e-6), type(module).__name__


def test_tied_embeddings_are_one_matrix():
    sizes = replace(SIZES, tied=True)
    layers = vlm_layers(sizes, MEAN)
    modules = build(layers, range(len(layers)), seed=0)
    assert torch.equal(modules[3].token.weight, modules[-1].project.weight)
    assert np.isclose(layers[0].cost * MEAN.tokens, 3 * 16 * 16 * MEAN.patches)


class _Copies(TorchDispatchMode):
    """Keeps from where to where tensors are copied."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        devices = {each.device for each in tree_leaves((arguments, result)) if isinstance(each, torch.Tensor)}
        if len(devices) > 1:
            self.seen.append(function)
        return result


def test_positions_are_made_on_the_device_and_never_copied_from_the_host():
    """Such a copy would wait for all that a GPU has been given."""
    with _Copies() as copies:
        found = positions([(4, 6), (2, 2)], dim=8, merge=2, device=torch.device("meta"))
    assert found.device.type == "meta" and found.shape == (28, 8)
    assert copies.seen == []
