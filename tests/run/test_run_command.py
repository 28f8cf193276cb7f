"""`hpcpipe run` from the outside: what a user sees and finds on disk, and that wrong input starts nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import QUICKSTART, hpcpipe, small

MPIEXEC = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small run of the quickstart and the folder it was started in."""
    folder = tmp_path_factory.mktemp("run")
    return hpcpipe("run", QUICKSTART, *small("job.steps=12"), cwd=folder), folder


def test_a_plain_start_trains_and_says_where_everything_is(finished):
    process, folder = finished
    assert process.returncode == 0, process.stderr
    assert "step 12/12" in process.stdout
    assert "forward" in process.stdout
    assert "bubble" in process.stdout.lower()
    run = (folder / "runs" / "quickstart" / "latest").resolve()
    assert {p.name for p in run.iterdir()} >= {
        "job.toml",
        "environment.json",
        "events",
        "metrics.jsonl",
        "report.txt",
        "ranks.json",
        "gantt.png",
        "gantt.svg",
    }
    assert not [p for p in run.rglob(".*") if p.is_file()], "half-written files were left"
    for found in ("events", "gantt.png"):
        assert found in process.stdout
    assert (run / "gantt.png").read_bytes().startswith(b"\x89PNG")


def test_metrics_have_one_line_a_step_and_a_falling_loss(finished):
    _, folder = finished
    lines = (folder / "runs" / "quickstart" / "latest" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    assert [s["step"] for s in steps] == list(range(12))
    found = {"step", "loss", "grad_norm", "lr", "tokens", "step_ns", "loss_scale", "skipped"}
    assert set(steps[0]) == found | {"hint", "dispatch", "k", "microbatch_size"}
    assert steps[-1]["loss"] < steps[0]["loss"] - 0.2
    assert steps[0]["tokens"] == 8 * 2 * 32


def test_the_accounting_of_a_real_run_closes_to_the_nanosecond(finished):
    _, folder = finished
    process = hpcpipe("analyze", "runs/quickstart/latest", "--json", cwd=folder)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["world_size"] == 4
    assert len(report["ranks"]) == 4
    for rank in report["ranks"]:
        assert sum(rank["classes"].values()) == rank["wall_ns"]
        assert rank["classes"]["order"] == 0
        assert rank["classes"]["forward"] > 0
        assert rank["classes"]["backward"] > 0
    assert report["gaps"] == []


def test_every_task_of_every_step_is_in_the_log_once(finished):
    import numpy as np

    from hpcpipe.events import open_run
    from hpcpipe.plan import Kind

    _, folder = finished
    run = open_run(folder / "runs" / "quickstart" / "latest")
    for rank in run.ranks:
        events = rank.events
        for kind in (Kind.F, Kind.B):
            mine = events.kind == kind
            pairs = list(zip(events.step[mine].tolist(), events.microbatch[mine].tolist(), strict=True))
            assert sorted(pairs) == [(step, m) for step in range(12) for m in range(8)]
            assert np.all(events.t_ready[mine] <= events.t_start[mine])
            assert np.all(events.t_start[mine] <= events.t_end[mine])


def test_the_resolved_job_of_a_run_runs_again(finished):
    _, folder = finished
    process = hpcpipe("validate", "runs/quickstart/latest/job.toml", cwd=folder)
    assert process.returncode == 0, process.stdout + process.stderr


def test_under_mpiexec_the_given_ranks_are_used(tmp_path):
    command = [MPIEXEC, "-n", "2", sys.executable, "-m", "hpcpipe", "run", str(QUICKSTART), "--run-dir", "here"]
    command += small("job.steps=2", "parallel.pipeline=2")
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "here" / "events").iterdir())) == 2


def test_ranks_that_do_not_match_the_job_are_refused_with_both_numbers(tmp_path):
    command = [MPIEXEC, "-n", "3", sys.executable, "-m", "hpcpipe", "run", str(QUICKSTART)]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert process.returncode == 3
    assert process.stderr.count("3 ranks were started, but [parallel] asks for 4") == 1
    assert not list(tmp_path.iterdir())


def test_data_parallel_with_two_stages_trains(tmp_path):
    overrides = small("job.steps=3", "parallel.pipeline=2", "parallel.data=2", "comm.bucket_mb=0.05")
    process = hpcpipe("run", QUICKSTART, *overrides, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    report = json.loads(hpcpipe("analyze", "runs/quickstart/latest", "--json", cwd=tmp_path).stdout)
    assert all(sum(rank["classes"].values()) == rank["wall_ns"] for rank in report["ranks"])


def test_without_event_log_the_training_runs_and_says_nothing_of_it(tmp_path):
    process = hpcpipe("run", QUICKSTART, *small("parallel.pipeline=1", "job.steps=2", "events.on=false"), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "event log" not in process.stdout


def test_quiet_prints_nothing(tmp_path):
    process = hpcpipe("run", QUICKSTART, "--quiet", *small("parallel.pipeline=1", "job.steps=2"), cwd=tmp_path)
    assert (process.returncode, process.stdout) == (0, "")


def test_a_loss_that_explodes_ends_with_exit_code_5_and_advice(tmp_path):
    overrides = small("parallel.pipeline=2", "optimizer.lr=1e30", "optimizer.warmup=0")
    process = hpcpipe("run", QUICKSTART, *overrides, cwd=tmp_path)
    assert process.returncode == 5, process.stderr
    assert "the gradient is not finite" in process.stdout
    assert "try a smaller lr" in process.stdout
    assert "Traceback" not in process.stderr


def test_a_dry_run_shows_the_stages_and_starts_nothing(tmp_path):
    process = hpcpipe("run", QUICKSTART, "--set", "parallel.chunks=1", "--dry-run", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "block.6 … head" in process.stdout
    assert not list(tmp_path.iterdir())


def test_a_run_directory_that_holds_a_job_file_is_refused_and_kept(tmp_path):
    (tmp_path / "job.toml").write_text("# mine")
    process = hpcpipe("run", QUICKSTART, "--run-dir", ".", cwd=tmp_path)
    assert process.returncode == 3
    assert "job.toml" in process.stderr
    assert "Traceback" not in process.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["job.toml"]
    assert (tmp_path / "job.toml").read_text() == "# mine"


def test_a_file_where_the_run_directory_should_be_is_a_clear_error(tmp_path):
    (tmp_path / "runs").write_text("mine")
    process = hpcpipe("run", QUICKSTART, cwd=tmp_path)
    assert process.returncode == 3
    assert "cannot make the run directory" in process.stderr
    assert (tmp_path / "runs").read_text() == "mine"


BAD = {
    "missing file": (None, (), "nowhere.toml"),
    "malformed TOML": ("[job\nsteps = 1\n", (), ":1:"),
    "unknown key": (None, ("schedule.hnt='bf'",), "hint"),
    "wrong type": (None, ("job.steps='many'",), "steps"),
    "ranks that do not divide": (None, ("--ranks", "3"), "3"),
    "more stages than layers": (None, ("parallel.pipeline=9",), "layers"),
    "no micro-batches": (None, ("batch.microbatches=0",), "microbatches"),
    "sequence too long": (None, ("data.seq_len=129",), "context"),
    "no data": (None, ("data.path='nowhere.txt'",), "nowhere.txt"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_input_exits_with_2_before_any_rank_or_file(tmp_path, case):
    text, overrides, named = BAD[case]
    job = QUICKSTART
    if case == "missing file":
        job = tmp_path / "nowhere.toml"
    elif text is not None:
        job = tmp_path / "job.toml"
        job.write_text(text)
    options = overrides if "--ranks" in overrides else [w for o in overrides for w in ("--set", o)]
    before = set(tmp_path.iterdir())
    process = hpcpipe("run", job, *options, cwd=tmp_path, timeout=100)
    assert process.returncode == 2, process.stdout + process.stderr
    assert named in process.stderr
    assert "Traceback" not in process.stderr
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("content", [b"", b"short"])
def test_data_that_cannot_fill_one_sequence_exits_with_2(tmp_path, content):
    (tmp_path / "data.txt").write_bytes(content)
    process = hpcpipe("run", QUICKSTART, "--set", f"data.path='{tmp_path}/data.txt'", cwd=tmp_path, timeout=100)
    assert process.returncode == 2
    assert "data.txt" in process.stderr
