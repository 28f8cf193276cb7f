"""Runs that are killed, stopped, requeued, and whose checkpoints are spoiled: they go on, or say why not."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from command import QUICKSTART, hpcpipe, small

from hpcpipe.analyze import summarize
from hpcpipe.checkpoint import Reader, faults_of, list_steps, read_manifest
from hpcpipe.cli import start
from hpcpipe.events import open_run
from hpcpipe.job import load_job
from hpcpipe.plan import TimeClass

PATIENCE_S = 100
SIZES = ("parallel.pipeline=2", 'schedule.hint="bf"', "model.dim=16", "batch.microbatches=4", "model.dropout=0.1")


def options(steps, *overrides):
    """Return the options of a small job that saves every three steps."""
    return small(f"job.steps={steps}", "checkpoint.every=3", *SIZES, *overrides)


def losses(run):
    """Return the losses of a run by step; every step must be there once, in order."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(len(lines)))
    return [line["loss"] for line in lines]


def contents(checkpoint):
    """Return the elements of all tensors of a checkpoint by kind and name."""
    reader = Reader(checkpoint)
    kinds = {"model": reader.manifest.parameters, **reader.manifest.state}
    return {
        (kind, name): reader.elements(name, entry) for kind, tensors in kinds.items() for name, entry in tensors.items()
    }


def same(one, other):
    """Return whether two checkpoints hold the same bits."""
    a, b = contents(one), contents(other)
    return a.keys() == b.keys() and all(np.array_equal(a[key], b[key]) for key in a)


class Start:
    """One start of a run in a directory that it goes on with, ended whatever happens."""

    def __init__(self, folder, steps):
        self.run = folder / "here"
        (self.run / "ranks.json").unlink(missing_ok=True)
        command = [sys.executable, "-m", "hpcpipe", "run", str(QUICKSTART), "--run-dir", "here", "--resume", "auto"]
        self.process = subprocess.Popen(
            [*command, *options(steps)],
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def after(self, steps):
        """Wait until the ranks are there and have done so many steps; return their processes, none if it is over."""
        ranks = self.run / "ranks.json"
        if not self._wait(ranks.exists):
            return []
        begin = self._lines()
        if not self._wait(lambda: self._lines() >= begin + steps):
            return []
        return [entry["pid"] for entry in json.loads(ranks.read_text())]

    def end(self):
        """Return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def _wait(self, condition):
        give_up = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < give_up
            if self.process.poll() is not None:
                return False
            time.sleep(0.001)
        return True

    def _lines(self):
        path = self.run / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0


def disturbed(folder, steps, *, draws, kills, stops=0):
    """Run to the end, killed and stopped at random moments on the way; return how often it was."""
    left = ["kill"] * kills + ["stop"] * stops
    draws.shuffle(left)
    done = 0
    while True:
        with Start(folder, steps) as run:
            what = left[-1] if left else "nothing"
            pids = run.after(draws.randrange(7)) if left else []
            time.sleep(draws.random() * 0.03 if pids else 0)
            victims = pids if draws.random() < 0.5 else [draws.choice(pids)] if pids else []
            for pid in victims:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if what == "kill" else signal.SIGTERM)
            code, out, err = run.end()
        for path in list_steps(run.run / "checkpoints"):
            assert faults_of(path, read_manifest(path), content=True) == []
        assert code in ({0} if not victims else {4, 0} if what == "kill" else {75, 0}), err
        assert "cannot be used" not in err
        if code == 75:
            count = len(losses(run.run))
            assert (run.run / "checkpoints" / f"step_{count:08d}").exists(), "it saves its last step"
            assert f"stopped on all ranks after step {count} of {steps}" in out
            assert "--resume" in out
        if code == 0:
            return done
        left.pop()
        done += 1


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the runs that nobody disturbs, by their number of steps."""
    runs = {}

    def run(steps):
        if steps not in runs:
            folder = tmp_path_factory.mktemp("undisturbed")
            sets = options(steps, "events.on=false")
            process = hpcpipe("run", QUICKSTART, "--run-dir", "here", "--quiet", *sets, cwd=folder, timeout=600)
            assert process.returncode == 0, process.stderr
            runs[steps] = folder / "here"
        return runs[steps]

    return run


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_again_and_again_ends_with_the_bits_of_one_that_is_not(tmp_path, undisturbed):
    steps = 40
    whole = undisturbed(steps)
    assert disturbed(tmp_path, steps, draws=random.Random(11), kills=3) == 3
    here = tmp_path / "here"
    assert losses(here) == losses(whole)
    assert same(here / "checkpoints" / "latest", whole / "checkpoints" / "latest")
    starts = json.loads((here / "history.json").read_text())["starts"]
    assert 1 < len(starts) <= 4, "one that was killed at once may have noted nothing"
    assert starts[-1]["first_step"] > 0
    assert not [path for path in (here / "checkpoints").iterdir() if path.name.endswith((".partial", ".going"))]
    log = open_run(here)
    assert log.ranks[0].steps.step.tolist() == list(range(starts[-1]["first_step"], steps))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_200_kills_at_random_moments_leave_the_bits_as_they_were(tmp_path, undisturbed):
    steps = 1200
    whole = undisturbed(steps)
    assert disturbed(tmp_path, steps, draws=random.Random(23), kills=200) == 200
    assert losses(tmp_path / "here") == losses(whole)
    assert same(tmp_path / "here" / "checkpoints" / "latest", whole / "checkpoints" / "latest")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_that_is_preempted_again_and_again_loses_no_step(tmp_path, undisturbed):
    steps = 120
    whole = undisturbed(steps)
    assert disturbed(tmp_path, steps, draws=random.Random(5), kills=0, stops=10) >= 5
    assert losses(tmp_path / "here") == losses(whole)
    assert same(tmp_path / "here" / "checkpoints" / "latest", whole / "checkpoints" / "latest")


def test_a_requeued_job_goes_on_by_itself_with_one_history_and_the_same_bits(tmp_path, undisturbed):
    """Two starts as Slurm would make them: the second has a folder of its own and continues the first one's curve."""
    runs = tmp_path / "runs" / "quickstart"

    def run(restart, *, stop):
        environment = {"SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": str(restart)}
        command = [sys.executable, "-m", "hpcpipe", "run", str(QUICKSTART), *options(40, "checkpoint.keep=1")]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, **environment}
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
            metrics = runs / f"77-{restart}" / "metrics.jsonl"
            while stop and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 5):
                assert process.poll() is None
                time.sleep(0.002)
            if stop:
                process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out

    code, _ = run(0, stop=True)
    assert code == 75
    done = len(losses(runs / "77-0"))
    saved = runs / "77-0" / "checkpoints" / f"step_{done:08d}"
    assert list_steps(saved.parent) == [saved]
    code, out = run(1, stop=False)
    assert code == 0
    assert f"goes on after step {done} of {saved}" in out
    assert losses(runs / "77-0") == losses(undisturbed(40))[:done]
    assert losses(runs / "77-1") == losses(undisturbed(40))
    history = json.loads((runs / "77-1" / "history.json").read_text())["starts"]
    assert [(each["restart"], each["first_step"]) for each in history] == [(0, 0), (1, done)]
    assert list_steps(saved.parent) == [], "keep counts the checkpoints of all starts of a job"
    assert [path.name for path in list_steps(runs / "77-1" / "checkpoints")] == ["step_00000040"]
    assert open_run(runs / "77-1").ranks[0].header.restart == 1


def test_a_spoiled_checkpoint_is_refused_by_name_and_auto_takes_the_one_before(tmp_path, undisturbed):
    process = hpcpipe("run", QUICKSTART, "--run-dir", "here", "--quiet", *options(9), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    folder = tmp_path / "here" / "checkpoints"
    before = list_steps(folder)[1]
    step = read_manifest(before).step
    spoiled = folder / "step_00000009" / "optimizer-00002-of-00002.safetensors"
    content = bytearray(spoiled.read_bytes())
    content[-100] ^= 4
    spoiled.write_bytes(content)
    asked = hpcpipe("run", QUICKSTART, "--resume", spoiled.parent, *options(40), cwd=tmp_path)
    assert asked.returncode == 2
    assert f"{spoiled.name} is damaged" in asked.stderr
    assert f"--resume {before}" in asked.stderr
    assert not (tmp_path / "runs").exists(), "nothing was started or written"
    other = hpcpipe("run", QUICKSTART, "--resume", before, *options(40, "model.dim=32"), cwd=tmp_path)
    assert other.returncode == 2
    assert "[model] dim = 16, the job has 32" in other.stderr
    none = hpcpipe("run", QUICKSTART, "--resume", "here", *options(40, "model.dim=32"), cwd=tmp_path)
    assert none.returncode == 2
    assert "no checkpoint of here can be used; nothing was started" in none.stderr
    assert not (tmp_path / "runs").exists()
    auto = hpcpipe("run", QUICKSTART, "--run-dir", "here", "--resume", "auto", *options(40), cwd=tmp_path)
    assert auto.returncode == 0, auto.stderr
    assert f"warning: {spoiled.parent} cannot be used: {spoiled.name} is damaged" in auto.stderr
    assert f"goes on after step {step} of {before}" in auto.stdout
    assert f"after the first {step}" in auto.stdout
    assert losses(tmp_path / "here") == losses(undisturbed(40))
    assert summarize(open_run(tmp_path / "here")).classes[TimeClass.CHECKPOINT] > 0
    again = hpcpipe("run", QUICKSTART, "--run-dir", "here", "--resume", "auto", *options(40), cwd=tmp_path)
    assert again.returncode == 0
    assert "has all 40 steps of the job done" in again.stdout
    both = hpcpipe("run", QUICKSTART, "--replay", "here", "--resume", "auto", *options(2), cwd=tmp_path)
    assert both.returncode == 2


@pytest.fixture
def tiny_disk(tmp_path):
    """Return a folder on a file system of its own with room for one checkpoint and a half."""
    folder = tmp_path / "here" / "checkpoints"
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_a_full_disk_leaves_training_and_old_checkpoint_as_they_are(tmp_path, tiny_disk):
    process = hpcpipe("run", QUICKSTART, "--run-dir", "here", *options(24, "model.dim=32"), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    assert len(losses(tmp_path / "here")) == 24
    (kept,) = list_steps(tiny_disk)
    assert faults_of(kept, read_manifest(kept), content=True) == []
    assert kept.name == "step_00000003"
    warnings = [line for line in process.stderr.splitlines() if line.startswith("hpcpipe: warning: ")]
    assert warnings
    assert all(f"the last good one is here/checkpoints/{kept.name}" in warning for warning in warnings)
    assert all("No space left on device" in warning for warning in warnings)


def test_a_directory_in_which_a_run_works_is_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(start, "PATIENCE_S", 0.2)
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "job.toml").touch()
    (folder / "events").mkdir()
    command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", "hpcpipe"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # its command line can be read only after exec
        ranks = [{"rank": 1, "host": socket.gethostname(), "pid": process.pid, "stage": 0}]
        (folder / "ranks.json").write_text(json.dumps(ranks))
        try:
            assert start.make_directory(load_job(QUICKSTART), folder, goes_on=True) is None
        finally:
            process.kill()
    assert (folder / "events").exists()
    assert start.make_directory(load_job(QUICKSTART), folder, goes_on=True) == folder
    assert (folder / "events.0").exists()
    assert not (folder / "ranks.json").exists()
