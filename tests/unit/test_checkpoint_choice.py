"""Which checkpoint a run goes on from: of its own training, whole, the newest; what is refused and what is offered."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from checkpoints import SHAPES, damage, job_of, make, values_of
from click.testing import CliRunner
from safetensors.numpy import load_file

from hpcpipe.checkpoint import (
    CheckpointError,
    Reader,
    candidates,
    check_fit,
    choose,
    judge,
    read_manifest,
    tokenizer_hash,
)
from hpcpipe.checkpoint.rewrite import export
from hpcpipe.cli.main import main


def pick(job, found):
    """Choose, and return what was chosen and the warnings."""
    warnings = []
    chosen = choose(job, found, read=lambda folder: judge(job, folder), warn=warnings.append)
    return chosen, warnings


@pytest.mark.parametrize(
    "overrides",
    [
        ("parallel.pipeline=4",),
        ("parallel.pipeline=1", "parallel.data=2", "batch.microbatches=4"),
        ("batch.microbatches=2", "batch.microbatch_size=4"),
        ("job.steps=500", "optimizer.lr=0.5", 'optimizer.schedule="cosine"', "job.name='other'"),
        ("model.recompute='all'", "model.dropout=0.1", "checkpoint.every=5"),
    ],
)
def test_layout_and_length_may_change(tmp_path, overrides):
    path = make(tmp_path, job_of(tmp_path), 7)
    check_fit(path, read_manifest(path), job_of(tmp_path, *overrides))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.dim=128",), r"\[model\] dim = 64, the job has 128"),
        (("model.heads=8",), r"\[model\] heads = 4, the job has 8"),
        (("data.seq_len=16",), r"\[data\] seq_len = 32, the job has 16"),
        (("data.seed=4",), r"\[data\] seed = 0, the job has 4"),
        (("job.seed=4",), r"\[job\] seed = 0, the job has 4"),
        (("optimizer.name='sgd'",), r"\[optimizer\] name = 'adamw', the job has 'sgd'"),
        (("parallel.data=2",), "8 sequences a step .* the job has 16"),
    ],
)
def test_another_training_is_refused_with_both_values(tmp_path, overrides, words):
    """A place in the data that silently becomes another is torchtitan 811's fault."""
    path = make(tmp_path, job_of(tmp_path), 7)
    with pytest.raises(CheckpointError, match=words):
        check_fit(path, read_manifest(path), job_of(tmp_path, *overrides))


def test_all_that_differs_is_named_at_once(tmp_path):
    path = make(tmp_path, job_of(tmp_path), 7)
    changed = job_of(
        tmp_path, "model.dim=128", "data.seq_len=16", "optimizer.name='sgd'", "job.seed=4", "parallel.data=2"
    )
    with pytest.raises(CheckpointError) as refused:
        check_fit(path, read_manifest(path), changed)
    message = str(refused.value)
    for remedy in ("128; set it to 64;", "16; set it to 32;", "'sgd'; set it to 'adamw';", "4; set it to 0;"):
        assert message.count(f"the job has {remedy}") == 1
    assert message.endswith("keep the product at 8, or start anew without --resume")


def test_a_tokenizer_may_move_but_not_change(tmp_path):
    """Ids that silently mean other words are no continuation."""
    first, moved, other = (tmp_path / name / "tokenizer.json" for name in ("first", "moved", "other"))
    for file, words in ((first, {"to": 0}), (moved, {"to": 0}), (other, {"be": 0})):
        file.parent.mkdir()
        file.write_text(json.dumps({"model": {"vocab": words}}))
    saved = job_of(tmp_path, f"data.tokenizer={first}")
    path = make(tmp_path, saved, 7, tokenizer=tokenizer_hash(saved))
    manifest = read_manifest(path)
    check_fit(path, manifest, job_of(tmp_path, f"data.tokenizer={moved}"))
    for now, words in (
        (f"data.tokenizer={other}", f"the job has '{other}' \\(xxh3 "),
        ("job.steps=9", "the job has '';"),
    ):
        with pytest.raises(CheckpointError, match=rf"it has \[data\] tokenizer = '{first}' \(xxh3 \w+\), {words}"):
            check_fit(path, manifest, job_of(tmp_path, now))
    first.write_text(other.read_text())
    with pytest.raises(CheckpointError, match="set it to the same tokenizer, with the same content"):
        check_fit(path, manifest, saved)
    of_before = replace(manifest, tokenizer=None)  # what wrote it did not keep a hash
    check_fit(path, of_before, saved)
    plain = job_of(tmp_path)
    bytes_ = make(tmp_path, plain, 9, tokenizer=tokenizer_hash(plain))
    with pytest.raises(CheckpointError, match=r"it has \[data\] tokenizer = '', the job has '.*' \(xxh3 "):
        check_fit(bytes_, read_manifest(bytes_), saved)


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing"])
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_offered(tmp_path, how):
    job = job_of(tmp_path)
    older, newer = make(tmp_path / "c", job, 10), make(tmp_path / "c", job, 20)
    file = newer / "optimizer-00002-of-00002.safetensors"
    damage(file, how)
    with pytest.raises(CheckpointError) as refused:
        pick(job, [newer])
    assert all(words in str(refused.value) for words in (str(newer), file.name, f"--resume {older}"))
    chosen, (warning,) = pick(job, [newer, older])
    assert chosen.folder == older
    assert chosen.step == 10
    assert file.name in warning
    damage(older / "manifest.json", "truncated")
    chosen, warnings = pick(job, [newer, older])
    assert chosen is None
    assert len(warnings) == 2


def test_auto_takes_this_run_then_earlier_starts_of_the_batch_job_then_other_runs(tmp_path):
    job = job_of(tmp_path, f"job.run_dir='{tmp_path / 'runs'}'", "checkpoint.every=5")
    runs = tmp_path / "runs" / "small"
    of = {
        name: make(runs / name / "checkpoints", job, step) for name, step in [("12-0", 10), ("12-1", 20), ("12-2", 15)]
    }
    other = make(runs / "123-0" / "checkpoints", job, 90)
    (runs / "latest").symlink_to("123-0")

    def found(request, *, run_directory=None, job_id=None, restart=0):
        return candidates(job, request, run_directory=run_directory, job_id=job_id, restart=restart)

    assert found(None, job_id="12", restart=2) == [of["12-1"], of["12-0"]]
    assert found(None, job_id="12", restart=0) == []
    assert found("auto", job_id="12", restart=1) == [of["12-0"]]
    assert found("auto")[0] == other
    assert found("auto", run_directory=runs / "12-2") == [of["12-2"]]
    assert found(str(runs / "12-1")) == [of["12-1"]]
    assert found(str(of["12-0"])) == [of["12-0"]]
    assert found(str(runs)) == [other]
    with pytest.raises(CheckpointError, match="does not exist"):
        found(str(tmp_path / "nowhere"))
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        found(str(tmp_path))


def test_a_run_directory_of_another_training_is_not_begun_anew(tmp_path):
    """The new training would replace the checkpoints by its own, as many as `keep` says."""
    run = tmp_path / "run"
    make(run / "checkpoints", job_of(tmp_path), 10)
    changed = job_of(tmp_path, "job.seed=3")

    def found(job):
        return candidates(job, "auto", run_directory=run, job_id=None, restart=0)

    with pytest.raises(CheckpointError, match=r"\[job\] seed = 0, the job has 3.*another --run-dir"):
        found(changed)
    assert len(found(job_of(tmp_path))) == 1
    ours = make(run / "checkpoints", changed, 20)
    assert ours in found(changed), "one that fits is enough"
    damage(ours / "manifest.json", "truncated")
    with pytest.raises(CheckpointError, match="another --run-dir"):
        found(changed)


def test_a_link_that_leads_to_itself_is_no_checkpoint(tmp_path):
    (tmp_path / "latest").symlink_to("latest")
    for request in (tmp_path / "latest", "~nobody-of-this-name/run"):
        with pytest.raises(CheckpointError, match="does not exist"):
            candidates(job_of(tmp_path), str(request), run_directory=None, job_id=None, restart=0)


def call(*words):
    return CliRunner().invoke(main, ["checkpoint", *map(str, words)])


def test_inspect_and_verify_say_what_is_there_and_what_is_wrong(tmp_path):
    job = job_of(tmp_path)
    older, newer = (make(tmp_path / "run" / "checkpoints", job, step) for step in (10, 20))
    told = call("inspect", tmp_path / "run")
    assert told.exit_code == 0
    assert told.output.index(str(newer)) < told.output.index(str(older))
    assert f"{sum(values_of(name, 0).size for name in SHAPES)} elements in 5 tensors of 5 layers" in told.output
    assert call("verify", tmp_path / "run").exit_code == 0
    damage(newer / "model-00001-of-00002.safetensors", "flipped")
    assert call("inspect", newer).exit_code == 0, "contents are not read"
    verdict = call("verify", tmp_path / "run", "--json")
    assert verdict.exit_code == 2
    assert [each["ok"] for each in json.loads(verdict.output)["checkpoints"]] == [False, True]
    assert "model-00001-of-00002.safetensors is damaged" in call("verify", newer).output
    assert call("export", newer, tmp_path / "out").exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shard_gb", [5, 0.0000002])
def test_an_export_holds_the_model_and_its_table(tmp_path, shard_gb):
    path = make(tmp_path / "c", job_of(tmp_path), 10)
    export(Reader(path), tmp_path / "out", shard_bytes=int(shard_gb * 1e9))
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    found = {name: value for file in files for name, value in load_file(file).items()}
    assert found.keys() == set(SHAPES)
    assert all((found[name] == values_of(name, 10)).all() for name in SHAPES)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dim"] == 64
    if shard_gb < 1:
        index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
        assert len(files) > 1
        assert all(name in load_file(tmp_path / "out" / file) for name, file in index["weight_map"].items())
        assert index["metadata"]["total_size"] == sum(values.nbytes for values in found.values())


def test_the_command_exports_into_new_folders_only(tmp_path):
    path = make(tmp_path / "c", job_of(tmp_path), 10)
    assert call("export", path, tmp_path / "out", "--names", "own").exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert "is not empty" in call("export", path, tmp_path / "out").output


def test_a_reshaped_checkpoint_is_the_same_state_in_other_files(tmp_path):
    job = job_of(tmp_path)
    path = make(tmp_path / "c", job, 10)
    told = call("reshape", path, tmp_path / "new", "--pipeline", 2, "--data", 2)
    assert told.exit_code == 0, told.output
    new = tmp_path / "new" / "step_00000010"
    one, other = Reader(path), Reader(new)
    assert len([name for name in other.manifest.files if name.startswith("model")]) == 4
    for name, entry in one.manifest.parameters.items():
        assert (one.elements(name, entry) == other.elements(name, other.manifest.parameters[name])).all()
        for kind, tensors in one.manifest.state.items():
            mine, theirs = tensors[name], other.manifest.state[kind][name]
            assert (one.elements(name, mine) == other.elements(name, theirs)).all()
    assert call("verify", new).exit_code == 0
    assert pick(job, [new])[0].step == 10


@pytest.mark.parametrize("words", [("inspect",), ("verify",), ("export", "out", "--names", "own"), ("reshape", "new")])
def test_the_command_needs_neither_mpi_nor_torch(tmp_path, words):
    path = make(tmp_path / "c", job_of(tmp_path), 10)
    arguments = ["checkpoint", words[0], str(path), *words[1:]]
    code = (
        "import sys; from hpcpipe.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert not {'torch', 'mpi4py'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
