"""What `import hpcpipe` offers: it is light, typed and described, and says the same as the commands do."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from job_text import write_job
from picture_records import JOB as VISION
from picture_records import write_lines
from synthetic_log import Pipeline, write_run

import hpcpipe
from hpcpipe.api.job_files import as_words
from hpcpipe.cli import main
from hpcpipe.job.overrides import parse_overrides
from hpcpipe.plan import Kind, TimeClass

ROOT = Path(__file__).parents[2]
EMULATED = ROOT / "jobs" / "emulated.toml"
QUIET = {"variability.compute": {"model": "none"}, "variability.network": {"model": "none"}}


@pytest.mark.parametrize("name", [name for name in hpcpipe.__all__ if name != "__version__"])
def test_every_public_name_is_there_described_and_typed(name):
    thing = getattr(hpcpipe, name)
    assert inspect.getdoc(thing)
    assert name in dir(hpcpipe)
    if inspect.isfunction(thing):
        signature = inspect.signature(thing)
        assert signature.return_annotation is not inspect.Signature.empty
        assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        hpcpipe.simulat  # noqa: B018


def _modules_after(code):
    script = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True, cwd=ROOT
    )
    return set(done.stderr.splitlines()[-1].split())


def test_importing_hpcpipe_reads_next_to_nothing():
    before = _modules_after("pass")
    assert not {name for name in _modules_after("import hpcpipe") - before if name.startswith("hpcpipe.")} - {
        "hpcpipe.lazy"
    }


def test_jobs_that_compute_are_checked_and_simulated_without_starting_mpi(tmp_path, monkeypatch):
    """On a login node the import of mpi4py.MPI may end the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lines(tmp_path)
    vision = write_job(tmp_path, VISION + "[parallel]\npipeline = 2\n", corpus=None)
    paths = [str(path) for path in (ROOT / "jobs" / "quickstart.toml", ROOT / "jobs" / "llama.toml", vision)]
    loaded = _modules_after(f"""
from hpcpipe.cli import main
for path in {paths!r}:
    for before, after in (["validate"], []), (["simulate"], ["--steps", "1"]), (["run"], ["--dry-run"]):
        try:
            main([*before, path, *after])
        except SystemExit as end:
            assert not end.code, (path, before, end.code)
""")
    assert {"torch", "hpcpipe.train.sizes"} <= loaded
    assert "mpi4py.MPI" not in loaded
    assert "hpcpipe._native" not in loaded


def test_settings_of_a_dict_are_those_of_the_command_line():
    settings = {
        "job.name": 'a "b"',
        "job.steps": 3,
        "parallel.split": [1, 2],
        "model.tied": True,
        "variability.compute": {"model": "lognormal", "sigma": 0.5},
    }
    read, faults = parse_overrides(as_words(settings))
    assert not faults
    assert {f"{each.table}.{each.key}": each.value for each in read} == settings
    with pytest.raises(TypeError, match="a list or a dict"):
        as_words("job.steps=3")


def test_settings_are_numbers_of_arrays_too_and_what_has_no_value_is_named():
    settings = {"job.steps": np.int64(4), "optimizer.lr": np.float32(0.5), "optimizer.betas": np.array([0.5, 0.75])}
    words = as_words(settings)
    assert [" ".join(word.split()) for word in words[:2]] == ["job.steps=4", "optimizer.lr=0.5"]
    read, faults = parse_overrides(words)
    assert ([each.value for each in read], faults) == ([4, 0.5, [0.5, 0.75]], [])
    with pytest.raises(TypeError, match=r"job\.steps: a NoneType .* leave the key out"):
        as_words({"job.steps": None})
    with pytest.raises(TypeError, match=r"job\.seed: a object is no value"):
        as_words({"job.seed": object()})


def test_one_text_is_no_list_of_schedules():
    with pytest.raises(TypeError, match=r"not one text: \['1f1b'\]"):
        hpcpipe.predict(EMULATED, compare="1f1b")


def test_plans_are_the_orders_of_the_literature_and_hold_every_parameter():
    """1F1B: S - 1 - s forwards to warm up, then in turn; a GPT block has 12 d^2 + 13 d parameters (biases, norms)."""
    stages, microbatches, dim = 4, 6, 64
    settings = {
        "model.dim": dim,
        "model.layers": 4,
        "parallel.chunks": 1,
        "batch.microbatches": microbatches,
        "schedule.hint": "1f1b",
        "schedule.dispatch": "fixed",
    }
    plans = hpcpipe.plans(ROOT / "jobs" / "quickstart.toml", settings)
    assert [plan.stage for plan in plans] == list(range(stages))
    for plan in plans:
        warmup = next(i for i, task in enumerate(plan.order) if task.kind is Kind.B) - 1
        assert warmup == stages - 1 - plan.stage
        assert plan.in_flight == stages - plan.stage
        assert len(plan.order) == 2 * microbatches
    assert [name for plan in plans for piece in plan.layers for name in piece] == [
        "embedding",
        *(f"block.{i}" for i in range(4)),
        "head",
    ]
    vocabulary, context = 256, 128
    blocks = 4 * (12 * dim * dim + 13 * dim)
    outside = vocabulary * dim + context * dim + 2 * dim + vocabulary * dim
    assert sum(plan.num_parameters for plan in plans) == pytest.approx(blocks + outside, abs=vocabulary)
    assert hpcpipe.plans(EMULATED, {"schedule.hint": "bf"})[0].order is None


def test_a_prediction_is_the_document_of_the_command():
    words = [str(EMULATED), "--set", "batch.microbatches=4", "--compare", "1f1b:fixed,bf", "--steps", "2", "--json"]
    said = CliRunner().invoke(main, ["simulate", *words]).stdout
    found = hpcpipe.predict(EMULATED, {"batch.microbatches": 4}, compare=["1f1b:fixed", "bf"], steps=2)
    assert json.loads(json.dumps(found.to_json())) == json.loads(said)


def test_predicted_bubbles_are_the_closed_form(tmp_path):
    settings = {**QUIET, "parallel.pipeline": 4, "batch.microbatches": 12}
    found = hpcpipe.predict(EMULATED, settings, compare=["1f1b:fixed", "gpipe:fixed"], steps=2)
    for prediction in found.predictions[1:]:
        assert prediction.bubble_ratio == pytest.approx(3 / 15)
    assert found.frame()["speedup"].to_list()[1] == 1.0
    assert len(found.plot(tmp_path / "gantt.svg")) == 3


def test_pictures_of_schedules_that_are_compared_have_one_time_scale(tmp_path):
    settings = {**QUIET, "parallel.pipeline": 4, "batch.microbatches": 8}
    found = hpcpipe.predict(EMULATED, settings, compare=["1f1b:fixed", "zbv:fixed"], steps=1)
    assert found.predictions[1].step_ns > 1.1 * found.predictions[2].step_ns
    pictures = [path.read_text() for path in found.plot(tmp_path / "gantt.svg")]
    ticks = [re.findall(r'<text style="font-size: 9px[^>]* x="([\d.]+)"[^>]*>(\d+)</text>', each) for each in pictures]
    assert len(ticks[0]) > 2
    assert ticks[0] == ticks[1] == ticks[2]


def test_what_cannot_be_predicted_is_refused_with_every_fault():
    with pytest.raises(hpcpipe.JobError) as refused:
        hpcpipe.predict(EMULATED, compare=["zbw", "kfkb:k=0"])
    assert {fault.key for fault in refused.value.faults} == {"schedule.hint", "schedule.k"}
    with pytest.raises(ValueError, match="not a multiple of data 1 x tensor 2"):
        hpcpipe.predict(EMULATED, {"parallel.tensor": 2, "parallel.pipeline": 4}, ranks=7)


def test_a_run_directory_is_read_while_it_grows(tmp_path):
    """GPipe of even stages: the bubble is (S - 1) / (M + S - 1)."""
    run = tmp_path / "runs" / "a"
    write_run(run, Pipeline(stages=3, microbatches=6, forward=1000, backward=2000, order="gpipe", steps=2))
    (tmp_path / "runs" / "latest").symlink_to("a")
    (run / "job.toml").touch()
    found = hpcpipe.Run(tmp_path / "runs")
    assert found.path == tmp_path / "runs" / "latest"
    with pytest.raises(ValueError, match="has not begun"):
        _ = found.job
    job = hpcpipe.load_job(EMULATED)
    (run / "job.toml").write_text(job.to_toml())
    assert found.job.to_toml() == job.to_toml()
    assert found.finished
    assert found.report().bubble_ratio == pytest.approx(2 / 8, rel=1e-3)
    assert found.report((1, 1)).steps == (1, 1)
    assert found.metrics().is_empty()
    (run / "metrics.jsonl").write_text('{"step": 0, "loss": 1.5}\n{"step": 1, "loss": null, "eval_loss": 2.0}\n{"st')
    assert found.metrics().rows() == [(0, 1.5, None), (1, None, 2.0)]
    (run / "metrics.jsonl").write_text('{"step": 0, "loss": 1.5}\n[1]\n')
    with pytest.raises(ValueError, match="line 2: no record of a step"):
        found.metrics()
    assert found.environment == {}
    assert found.checkpoints == []
    for _, pieces in found.pieces():
        useful = pieces.filter(pieces["class"].cast(str).is_in(["forward", "backward"]))
        assert (useful["t_end"] - useful["t_start"]).sum() == 3 * 6 * 3000
    assert set(found.report().classes) <= set(TimeClass)


def test_an_open_log_is_a_run_that_goes_on(tmp_path):
    writers = write_run(tmp_path, Pipeline(stages=2, microbatches=2, forward=10, backward=20), close=False)
    (tmp_path / "job.toml").write_text(hpcpipe.load_job(EMULATED).to_toml())
    assert not hpcpipe.Run(tmp_path).finished
    for writer in writers:
        writer.close()
    assert hpcpipe.Run(tmp_path).finished


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run here"):
        hpcpipe.Run(tmp_path)


def test_a_rank_of_a_launcher_starts_no_ranks_of_its_own(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(RuntimeError, match="a launcher has started this process"):
        hpcpipe.run(EMULATED)
