"""`[model] init`: sizes from config.json, and everything that is wrong with a folder, each fault with its place."""

import json
from pathlib import Path

import pytest
import torch
from huggingface import described, gpt2, llama, saved
from job_text import fault_of, faults_of, place, write_job
from safetensors.torch import load_file, save_file

from hpcpipe.job import Job, load_job
from hpcpipe.job.huggingface import FolderError, settings_of, stored_tensors

TEXT = """\
[model]
init = "start"

[data]
kind = "text"
path = "corpus.txt"
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Return a job that begins with a Llama in a folder beside it."""
    saved(llama(), tmp_path / "start")
    return write_job(tmp_path, TEXT)


def rewritten(folder: Path, **settings) -> None:
    """Change config.json; None takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | settings
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_the_folder_gives_the_kind_and_all_sizes(job: Path) -> None:
    model = load_job(job).model
    assert model.kind == "llama"
    assert (model.layers, model.dim, model.heads, model.kv_heads, model.head_dim) == (3, 32, 4, 2, 8)
    assert (model.mlp_dim, model.context, model.vocab_size, model.norm_eps) == (48, 64, 300, 1e-6)
    assert model.init_folder == job.parent / "start"
    assert load_job(job).data.seq_len == 64


def test_sizes_may_be_written_where_they_agree_and_each_that_does_not_is_a_fault(job: Path) -> None:
    agreeing = ["model.kind=llama", "model.layers=3", "model.rope_theta=10000", 'model.rope_scaling={type="none"}']
    assert faults_of(job, *agreeing) == ()
    job.write_text(TEXT.replace("[data]", "layers = 4\ndim = 32\ncontext = 32\ntied = true\n\n[data]"))
    faults = faults_of(job)
    assert [fault.key for fault in faults] == ["model.layers", "model.context", "model.tied"]
    assert faults[0].message == "layers = 4, but the model in start has 3"
    assert place(faults[0]) == (4, 10)
    assert "[data] seq_len makes sequences shorter" in faults[1].hint
    assert "but start holds a model of kind" in fault_of(write_job(job.parent, TEXT), "model.kind=gpt").message


def test_the_resolved_job_holds_the_sizes_and_needs_no_folder_to_be_read(job: Path) -> None:
    resolved = load_job(job).to_toml()
    assert load_job(write_job(job.parent, resolved)).to_toml() == resolved
    (job.parent / "start").rename(job.parent / "gone")
    model = Job.from_resolved(resolved).model
    assert (model.layers, model.init) == (3, str(job.parent / "start"))
    assert "does not exist" in fault_of(write_job(job.parent, resolved)).message


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ({"model_type": "mamba"}, ['model_type = "mamba"; "gpt2" or "llama" can be read']),
        ({"hidden_act": "relu"}, ['hidden_act = "relu"; here it is "silu" or "swish"']),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, ['rope_type = "yarn"; "default", "linear" and']),
        ({"rope_parameters": {"rope_type": "linear"}}, ['has no factor, which "linear" needs']),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["partial_rotary_factor; here all of a head"]),
        ({"quantization_config": {"bits": 4}}, ["quantised weights cannot be trained"]),
        ({"hidden_size": "wide"}, ['hidden_size of config.json must be a whole number of at least 1, got "wide"']),
        ({"num_hidden_layers": None, "pretraining_tp": 2}, ["pretraining_tp = 2", "num_hidden_layers of config.json"]),
    ],
)
def test_what_a_config_asks_for_and_is_not_here_is_refused_by_name(job: Path, settings, messages) -> None:
    rewritten(job.parent / "start", **settings)
    faults = faults_of(job)
    assert len(faults) == len(messages), faults
    assert all(message in fault.message for fault, message in zip(faults, messages, strict=True)), faults
    assert {place(fault) for fault in faults} == {(2, 8)}


@pytest.mark.parametrize(
    "settings",
    [
        {"n_inner": 100},
        {"activation_function": "relu"},
        {"scale_attn_by_inverse_layer_idx": True},
        {"reorder_and_upcast_attn": True},
        {"add_cross_attention": True},
    ],
)
def test_a_gpt_of_another_mathematics_is_refused_by_name(tmp_path: Path, settings) -> None:
    rewritten(saved(gpt2(), tmp_path / "start"), **settings)
    (key,) = settings
    assert key in fault_of(write_job(tmp_path, TEXT)).message


def test_early_configs_say_the_same_in_other_words(tmp_path: Path) -> None:
    """Before transformers 5 theta stood beside rope_scaling, whose type was called `type` before 4.43."""
    early = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    early |= {
        "intermediate_size": 96,
        "vocab_size": 99,
        "rope_theta": 5e5,
        "rope_scaling": {"type": "linear", "factor": 2},
    }
    settings = settings_of(early)
    assert (settings["kv_heads"], settings["head_dim"], settings["context"], settings["norm_eps"]) == (
        4,
        16,
        2048,
        1e-6,
    )
    assert settings["rope_theta"] == 5e5
    assert settings["rope_scaling"] == {"type": "linear", "factor": 2.0}
    assert not settings["tied"]
    assert settings_of(early | {"rope_scaling": None, "rope_theta": None})["rope_theta"] == 10000.0


def test_missing_unexpected_and_misshapen_tensors_are_named_all_at_once(job: Path) -> None:
    path = job.parent / "start" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.3.mlp.up_proj.weight"] = torch.zeros(2)
    tensors["lm_head.weight"] = torch.zeros(299, 32)
    tensors["model.embed_tokens.weight"] = torch.zeros(300, 32, dtype=torch.int8)
    save_file(tensors, path)
    messages = sorted(fault.message.removeprefix(f"{path.parent}: ") for fault in faults_of(job))
    assert messages == [
        "1 tensor is not of a floating type: model.embed_tokens.weight is I8",
        "1 tensor is not of this model: model.layers.3.mlp.up_proj.weight",
        "1 tensor is of another shape: lm_head.weight is [299, 32], not [300, 32]",
        "2 tensors are missing: model.layers.1.mlp.up_proj.weight, model.norm.weight",
    ]


def test_files_that_are_missing_torn_or_pickled_are_named(tmp_path: Path) -> None:
    folder = saved(llama(), tmp_path / "start", max_shard_size="20KB")
    job = write_job(tmp_path, TEXT)
    assert faults_of(job) == ()
    first, second, *_ = sorted(folder.glob("*.safetensors"))
    first.write_bytes(first.read_bytes()[:-7])
    second.unlink()
    said = {fault.message.removeprefix(f"{folder}") for fault in faults_of(job)}
    assert f": {second.name} is missing, which model.safetensors.index.json names" in said
    assert any(message.startswith(f"/{first.name} cannot be read as safetensors: ") for message in said)
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    index.write_text(json.dumps({"weight_map": {name: f"../{file}" for name, file in listed["weight_map"].items()}}))
    assert "names files outside the folder: ../model-00001" in fault_of(job).message
    index.write_text("[]")
    assert "is no index: it needs a weight_map" in fault_of(job).message
    index.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "only pytorch_model.bin; pickles are never loaded" in fault_of(job).message
    (folder / "config.json").write_text("{")
    assert "config.json is not JSON" in fault_of(job).message
    (folder / "config.json").unlink()
    assert "has no config.json" in fault_of(job).message


def test_a_llama_of_ones_own_needs_few_keys_and_its_heads_must_fit(tmp_path: Path) -> None:
    own = 'kind = "llama"\nlayers = 2\ndim = 24\nheads = 4\nmlp_dim = 64\ncontext = 16'
    job = write_job(tmp_path, TEXT.replace('init = "start"', own))
    model = load_job(job).model
    assert (model.kv_heads, model.head_dim, model.vocab_size, model.init_folder) == (4, 6, 256, None)
    fault = fault_of(job, "model.kv_heads=3")
    assert fault.message == "kv_heads = 3 does not divide heads = 4"
    assert fault.hint == "set kv_heads to 1, 2 or 4"
    assert "head_dim = 7 is odd" in fault_of(job, "model.head_dim=7").message
    assert "heads = 5 does not divide dim = 24" in fault_of(job, "model.heads=5", "model.head_dim=4").message
    for value, message in [
        ('{ type = "yarn" }', 'has the unknown type "yarn"'),
        ('{ type = "linear" }', "is wrong: factor Field required"),
        ('{ type = "linear", factor = 0.5 }', "is wrong: factor must be greater"),
        ("2", "must be a table with a type, got 2"),
    ]:
        assert message in fault_of(job, f"model.rope_scaling={value}").message
    assert "rope_scaling goes with kind" in fault_of(write_job(tmp_path), "model.rope_scaling={}").hint


def test_the_llama_of_the_examples_is_a_good_job() -> None:
    model = load_job(Path(__file__).parents[2] / "jobs" / "llama.toml", ranks=4).model
    assert (model.kv_heads, model.head_dim, model.tied) == (2, 16, True)


def test_a_wrong_key_besides_a_good_folder_is_the_only_fault(job: Path) -> None:
    assert fault_of(job, "model.layer=3").key == "model.layer"
    assert fault_of(job, "model.heads=0").key == "model.heads"
    assert fault_of(job, "parallel.pipeline=4", ranks=4).key == "parallel.pipeline"
    assert fault_of(job, "model.init=").message
    assert (
        fault_of(job, "model.init=package:nothing/x").message == "no package named nothing is installed in this Python"
    )


def test_every_parameter_is_one_tensor_and_a_tied_head_is_a_copy(tmp_path: Path) -> None:
    for number, model in enumerate([gpt2(), gpt2(tie_word_embeddings=False), llama(tie_word_embeddings=True), llama()]):
        stored = stored_tensors(described(saved(model, tmp_path / str(number))))
        assert sorted(each.tensor for each in stored if not each.copy) == sorted(dict(model.named_parameters()))
        assert len({each.key for each in stored}) == len(stored)
        assert [each.key for each in stored if each.copy] == ["head.project.weight"] * (1 - number % 2)


def test_a_folder_error_says_all_that_is_wrong() -> None:
    error = FolderError("one", "two")
    assert str(error) == "one; two"
    assert error.faults == ("one", "two")
