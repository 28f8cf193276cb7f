"""Models of Hugging Face folders against transformers: logits, gradients, the bytes of what is written back."""

import json

import pytest
import torch
import transformers
from deferred_layers import one_thread, same_bits, trained
from huggingface import CONTEXT, MODELS_OF_TESTS, VOCABULARY, described, gpt2, llama, saved
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from hpcpipe.job.huggingface import FolderError, stored_tensors
from hpcpipe.models import build, cut, hf_load, language_layers, outline, ties_of
from hpcpipe.models.deferred import deferrable, recording
from hpcpipe.models.hf_export import export_hf
from hpcpipe.models.recompute import run_layers
from hpcpipe.plan import Placement

pytestmark = pytest.mark.usefixtures(one_thread.__name__)


def tokens(length=CONTEXT):
    return torch.randint(0, VOCABULARY, (2, length + 1), generator=torch.Generator().manual_seed(1))


def built(folder, seed=0):
    """Return our model as one chain, its tied uses one parameter."""
    layers = language_layers(described(folder), seq_len=CONTEXT)
    modules = build(layers, range(len(layers)), seed=seed)
    for (origin, path), *others in ties_of(layers).values():
        for index, there in others:
            owner, _, name = there.rpartition(".")
            setattr(modules[index].get_submodule(owner), name, modules[origin].get_parameter(path))
    return layers, nn.Sequential(*modules)


def named(layers, chain):
    """Return our parameters by layer and name."""
    return {
        f"{layer.name}.{name}": parameter
        for layer, module in zip(layers, chain, strict=True)
        for name, parameter in module.named_parameters()
    }


def loss_of(logits, batch):
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@pytest.mark.parametrize("name", MODELS_OF_TESTS)
def test_logits_and_gradients_are_those_of_transformers(tmp_path, name):
    theirs = MODELS_OF_TESTS[name]()
    layers, ours = built(saved(theirs, tmp_path / "model"))
    batch = tokens()
    logits, expected = ours(batch[:, :-1]), theirs(batch[:, :-1]).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)
    loss_of(logits, batch).backward()
    loss_of(expected, batch).backward()
    parameters, gradients = named(layers, ours), {n: p.grad for n, p in theirs.named_parameters()}
    compared = set()
    for stored in stored_tensors(described(tmp_path / "model")):
        if not stored.copy:
            gradient = gradients[stored.tensor]
            mine = parameters[stored.key].grad
            torch.testing.assert_close(mine.t() if stored.transposed else mine, gradient, rtol=1e-4, atol=1e-5)
            compared.add(stored.tensor)
    assert compared == set(gradients)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("name", ["gpt2", "gpt2 untied", "llama", "llama tied"])
def test_a_stage_reads_the_tensors_of_its_layers_and_no_other(tmp_path, monkeypatch, name, stages):
    folder = saved(MODELS_OF_TESTS[name](), tmp_path / "model", max_shard_size="20KB")
    model, read = described(folder), []

    class Counting:
        def __init__(self, path, framework):
            self._file = safe_open(path, framework)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            del self._file

        def get_tensor(self, tensor):
            read.append(tensor)
            return self._file.get_tensor(tensor)

    monkeypatch.setattr(hf_load, "safe_open", Counting)
    whole = [p.detach().clone() for p in built(folder)[1].parameters()]
    layers = language_layers(model, seq_len=CONTEXT)
    pieces = cut(layers, Placement(stages), "auto")
    apart = []
    for piece in pieces:
        read.clear()
        modules = build(layers, piece, seed=9)
        names = {layers[index].name for index in piece}
        assert sorted(read) == sorted(stored.tensor for stored in stored_tensors(model) if stored.layer in names)
        apart += [p.detach() for module in modules for p in module.parameters()]
    if model.tied:
        assert same_bits(apart[0], apart.pop())
    assert all(same_bits(one, other) for one, other in zip(whole, apart, strict=True))


def test_nothing_is_drawn_or_read_for_layers_that_are_loaded_or_only_counted(tmp_path, monkeypatch):
    folder = saved(llama(), tmp_path / "model")
    layers = language_layers(described(folder), seq_len=CONTEXT)
    state = torch.get_rng_state()
    build(layers, range(len(layers)), seed=1)
    assert torch.equal(state, torch.get_rng_state())
    (folder / "model.safetensors").unlink()
    modules = outline(layers, range(len(layers)))
    assert {p.device.type for module in modules for p in module.parameters()} == {"meta"}
    with pytest.raises(FolderError, match=r"neither model.safetensors nor"):
        build(language_layers(described(folder), seq_len=CONTEXT), range(1), seed=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS_OF_TESTS)
def test_what_was_loaded_is_written_with_the_same_bytes(tmp_path, name, dtype):
    folder = saved(MODELS_OF_TESTS[name]().to(dtype), tmp_path / "model")
    layers, chain = built(folder)
    assert {p.dtype for p in chain.parameters()} == {torch.float32}
    export_hf(tmp_path / "written", described(folder), named(layers, chain), like=folder)
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "written" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(same_bits(before[key], after[key]) for key in before)
    configs = [json.loads((path / "config.json").read_text()) for path in (folder, tmp_path / "written")]
    assert configs[1].pop("torch_dtype") == configs[0].pop("dtype")
    assert configs[0] == configs[1]
    assert (tmp_path / "written" / "generation_config.json").is_file()


@pytest.mark.parametrize("name", MODELS_OF_TESTS)
def test_transformers_loads_a_model_that_never_was_a_folder(tmp_path, name):
    source = described(saved(MODELS_OF_TESTS[name](), tmp_path / "model"))
    model = source.model_copy(update={"init": ""})
    layers = language_layers(model, seq_len=CONTEXT)
    chain = nn.Sequential(*build(layers, range(len(layers)), seed=4))
    export_hf(tmp_path / "written", model, named(layers, chain), shard_bytes=30_000)
    assert len(list((tmp_path / "written").glob("model-*-of-*.safetensors"))) > 2
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "written", output_loading_info=True, dtype="auto"
    )
    assert not any(report.values()), report
    batch = tokens(CONTEXT - 1)
    torch.testing.assert_close(theirs(batch).logits, chain(batch), rtol=1e-5, atol=1e-5)
    assert described(tmp_path / "written").model_copy(update={"init": ""}) == model


def test_an_export_has_the_type_that_is_asked_for_and_never_overwrites(tmp_path):
    folder = saved(gpt2(), tmp_path / "model")
    layers, chain = built(folder)
    export_hf(tmp_path / "half", described(folder), named(layers, chain), dtype=torch.bfloat16)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "half")
    assert theirs.dtype == torch.bfloat16
    other = described(folder).model_copy(update={"norm_eps": 1e-3})
    with pytest.raises(ValueError, match="holds a model with other norm_eps"):
        export_hf(tmp_path / "other", other, named(layers, chain), like=folder)
    with pytest.raises(FileExistsError, match="is there already"):
        export_hf(tmp_path / "half", described(folder), named(layers, chain))
    few = {name: value for name, value in named(layers, chain).items() if name != "head.norm.bias"}
    with pytest.raises(KeyError, match=r"head\.norm\.bias"):
        export_hf(tmp_path / "few", described(folder), few)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "model"]


def test_a_base_model_without_prefix_and_with_early_constants_is_read(tmp_path):
    """The files of the first GPT-2 models: no head, no prefix, masks among the tensors."""
    theirs = gpt2()
    folder = saved(theirs.transformer, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    masks = {f"h.{i}.attn.bias": torch.ones(1, 1, CONTEXT, CONTEXT) for i in range(3)}
    save_file({**tensors, **masks}, folder / "model.safetensors")
    _, ours = built(folder)
    torch.testing.assert_close(ours(tokens()[:, :-1]), theirs(tokens()[:, :-1]).logits, rtol=1e-5, atol=1e-5)


def test_a_head_that_is_stored_beside_its_tie_must_be_the_same(tmp_path):
    folder = saved(gpt2(), tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["transformer.wte.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, folder / "model.safetensors")
    _, ours = built(folder)
    assert same_bits(ours[-1].project.weight, embedding)
    save_file({**tensors, "lm_head.weight": embedding + 1}, folder / "model.safetensors")
    with pytest.raises(FolderError, match=r"lm_head\.weight is not transformer\.wte\.weight, although"):
        built(folder)


@pytest.mark.parametrize("name", ["llama", "llama tied", "llama biases"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_split_backward_with_recomputation_has_the_bits_of_torchs(tmp_path, name, dtype):
    _, chain = built(saved(MODELS_OF_TESTS[name](), tmp_path / "model"))
    chain, batch = chain.to(dtype), tokens()
    parameters = trained(chain)
    output = chain(batch[:, :-1])
    expected = torch.autograd.grad(output, parameters, torch.ones_like(output))
    _, notices = deferrable(chain)
    assert notices == []
    again = run_layers(list(chain), batch[:, :-1], recompute=[range(1, 2), range(2, 4)])
    assert same_bits(again.detach(), output.detach())
    with recording() as pending:
        folded = torch.autograd.grad(again, parameters, torch.ones_like(again), allow_unused=True)
    assert all(gradient is None for gradient in folded)
    gradients = pending.compute(parameters, folded)
    assert all(same_bits(one, other) for one, other in zip(expected, gradients, strict=True))


def test_the_layers_keep_what_predictions_say(tmp_path):
    """Counted in memory between forward and backward, weights and tables of positions apart."""
    layers, chain = built(saved(llama(), tmp_path / "model"))
    weights = {p.untyped_storage().data_ptr() for p in chain.parameters()}
    value, kept = tokens()[:, :-1], []
    for module in chain:
        value = value if value.dtype == torch.int64 else value.detach().requires_grad_()
        seen = {}

        def keep(tensor, seen=seen):
            if tensor.untyped_storage().data_ptr() not in weights and tensor.numel() >= 2 * CONTEXT * 2:
                seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            value = module(value)
        kept.append(sum(t.untyped_storage().nbytes() / 4 for t in seen.values()) / (2 * CONTEXT))
    blocks = [layer.kept for layer in layers if layer.block]
    assert kept[1:-1] == pytest.approx(blocks, rel=0.15)
    assert blocks[0] == 6 * 32 + 2 * 32 + 2 * 16 + 4 * 48


def test_the_cost_of_a_block_is_that_of_its_matrices_and_scores(tmp_path):
    layers = language_layers(described(saved(llama(), tmp_path / "model")), seq_len=CONTEXT)
    for layer, module in zip(layers[1:-1], outline(layers, range(1, 4)), strict=True):
        matrices = sum(p.numel() for p in module.parameters() if p.ndim == 2)
        assert layer.cost == matrices + 2 * 32 * CONTEXT
