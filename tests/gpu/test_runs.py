"""Whole runs on a real GPU, which several ranks share: losses beside the CPU's, and bits that no timing changes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import picture_records
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

JOB = """
[job]
name = "gpu"
steps = 6
run_dir = "runs"
[model]
kind = "gpt"
layers = 4
dim = 64
heads = 4
context = 64
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
[batch]
microbatches = 6
microbatch_size = 2
[optimizer]
lr = 1e-3
warmup = 2
"""
LLAMA = JOB.replace('kind = "gpt"', 'kind = "llama"\nmlp_dim = 192')
VLM = f"""
[job]
name = "gpu"
steps = 6
run_dir = "runs"
{picture_records.JOB}
[batch]
microbatches = 4
microbatch_size = 2
[optimizer]
lr = 1e-3
"""
WATCHED = """
import atexit, runpy, sys, torch
from hpcpipe.device.cuda import Cuda
launch, seen = Cuda.launch, []
atexit.register(lambda: print(len(seen), "tasks were watched"))
def watched(device, label, *more):
    early = label.endswith((" step 0", " step 1"))  # tables are made, kernels compiled
    seen.extend([] if early else [label])
    torch.cuda.set_sync_debug_mode("default" if early else "error")
    try:
        return launch(device, label, *more)
    finally:
        torch.cuda.set_sync_debug_mode("default")
Cuda.launch = watched
sys.argv = ["hpcpipe", *sys.argv[1:]]
runpy.run_module("hpcpipe", run_name="__main__")
"""
DETERMINISTIC = """
import runpy, sys, torch
torch.use_deterministic_algorithms(True)
torch.backends.cuda.enable_flash_sdp(False)
torch.backends.cuda.enable_mem_efficient_sdp(False)
sys.argv = ["hpcpipe", *sys.argv[1:]]
runpy.run_module("hpcpipe", run_name="__main__")
"""


def _run(
    folder: Path,
    *overrides: str,
    env: dict[str, str] | None = None,
    ranks: int = 1,
    code: str = "",
    along: str = "pipeline",
    job: str = JOB,
    more: tuple[str, ...] = (),
):
    """Run the job and return what each step's line of the metrics says."""
    (folder / "job.toml").write_text(job)
    sets = [word for override in (f"parallel.{along}={ranks}", *overrides) for word in ("--set", override)]
    start = [sys.executable, "-c", code] if code else [sys.executable, "-m", "hpcpipe"]
    if code:  # hpcpipe would start ranks of its own, without it
        start = ["mpiexec", "-n", str(ranks), *start]
    command = [*start, "run", "job.toml", "--quiet", *sets, *more]
    environ = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(env or {})}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "runs" / "gpu" / "latest" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], done.stdout + done.stderr


def _losses(result):
    return [line["loss"] for line in result[0]]


CUDA, CPU, SHARED = 'device.kind="cuda"', 'device.kind="cpu"', "device.share=true"


@pytest.mark.parametrize("hint", ["1f1b", "bfw"])
def test_a_gpu_trains_with_the_losses_of_the_cpu(tmp_path, hint):
    cpu = _losses(_run(tmp_path, CPU, f'schedule.hint="{hint}"'))
    gpu = _losses(_run(tmp_path, CUDA, f'schedule.hint="{hint}"'))
    assert gpu == pytest.approx(cpu, rel=1e-4)


def test_two_ranks_that_share_a_gpu_train_with_the_losses_of_one(tmp_path):
    one = _losses(_run(tmp_path, CUDA))
    for aware in ("false", "true") if os.environ.get("HPCPIPE_TEST_CUDA_AWARE") else ("false",):
        two = _losses(_run(tmp_path, CUDA, SHARED, f"comm.cuda_aware={aware}", ranks=2))
        assert two == pytest.approx(one, rel=1e-4)


@pytest.mark.parametrize("along", ["data", "tensor"])
def test_replicas_and_slices_that_share_a_gpu_train_with_the_losses_of_the_cpu(tmp_path, along):
    settings = ("optimizer.clip=1.0", 'schedule.hint="bfw"')
    cpu = _losses(_run(tmp_path, CPU, *settings, ranks=2, along=along))
    gpu = _losses(_run(tmp_path, CUDA, SHARED, *settings, ranks=2, along=along))
    assert gpu == pytest.approx(cpu, rel=1e-4)


@pytest.mark.parametrize("model", ["llama", "vlm"])
def test_other_models_train_with_the_losses_of_the_cpu(tmp_path, model):
    picture_records.write_lines(tmp_path)
    job = LLAMA if model == "llama" else VLM
    cpu = _losses(_run(tmp_path, CPU, 'schedule.hint="bfw"', job=job))
    gpu = _losses(_run(tmp_path, CUDA, 'schedule.hint="bfw"', job=job))
    assert gpu == pytest.approx(cpu, rel=1e-4)


@pytest.mark.parametrize(("model", "recompute"), [("gpt", "none"), ("gpt", "all"), ("llama", "none"), ("vlm", "none")])
def test_no_task_makes_the_host_wait_for_the_gpu(tmp_path, model, recompute):
    """torch raises at what it knows to wait: copies to and from memory that is not pinned, numbers asked for."""
    picture_records.write_lines(tmp_path)
    job = {"gpt": JOB, "llama": LLAMA, "vlm": VLM}[model]
    settings = ('schedule.hint="bfw"', f'model.recompute="{recompute}"')
    lines, said = _run(tmp_path, CUDA, *settings, job=job, code=WATCHED)
    microbatches = 4 if model == "vlm" else 6
    assert len(lines) == 6
    assert int(said.partition(" tasks were watched")[0].split()[-1]) >= 4 * 3 * microbatches


def test_a_run_goes_on_from_its_checkpoint_and_evaluates_as_on_the_cpu(tmp_path):
    settings = ("data.eval_fraction=0.01", "data.eval_samples=8", "data.eval_every=3", "checkpoint.every=3")
    whole, _ = _run(tmp_path, CUDA, *settings)
    first = (tmp_path / "runs" / "gpu" / "latest").resolve()
    resumed, _ = _run(tmp_path, CUDA, *settings, more=("--resume", str(first / "checkpoints" / "step_00000003")))
    assert [line["loss"] for line in resumed] == pytest.approx([line["loss"] for line in whole], rel=1e-5)
    cpu, _ = _run(tmp_path, CPU, *settings)
    evaluated = [[line["eval_loss"] for line in lines if line.get("eval_loss") is not None] for lines in (whole, cpu)]
    assert len(evaluated[0]) == 2 and evaluated[0] == pytest.approx(evaluated[1], rel=1e-4)


def test_two_ranks_are_refused_the_same_gpu_where_sharing_is_not_allowed(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)
    command = [sys.executable, "-m", "hpcpipe", "run", "job.toml", "--set", "parallel.pipeline=2", "--set", CUDA]
    environ = {**os.environ, "CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3
    assert "share = true" in done.stderr and "Traceback" not in done.stderr


def test_how_many_tasks_are_given_ahead_changes_no_bit(tmp_path):
    runs = [
        _losses(_run(tmp_path, CUDA, SHARED, f"device.launch_ahead={ahead}", *more, ranks=2, code=DETERMINISTIC))
        for ahead, more in ((1, ()), (2, ()), (4, ('schedule.hint="bf"',)), (2, ('model.recompute="all"',)))
    ]
    assert all(run == runs[0] for run in runs)


def test_dropout_is_the_same_on_every_run_and_when_it_is_computed_again(tmp_path):
    runs = [
        _losses(_run(tmp_path, CUDA, "model.dropout=0.1", *more, code=DETERMINISTIC))
        for more in ((), (), ('model.recompute="all"',))
    ]
    assert runs[0] == runs[1] == runs[2]


def test_torchs_own_race_detector_finds_no_race(tmp_path):
    """It follows streams and events through every kernel; it is slow and knows nothing of messages."""
    _, said = _run(tmp_path, CUDA, "job.steps=2", 'schedule.hint="bfw"', env={"TORCH_CUDA_SANITIZER": "1"})
    assert "CSAN detected" not in said


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_trains(tmp_path, precision):
    losses = _losses(_run(tmp_path, CUDA, f'precision.compute="{precision}"', "job.steps=20"))
    assert losses[-1] < losses[0]


def test_compiled_layers_train_with_the_losses_of_plain_ones(tmp_path):
    plain = _losses(_run(tmp_path, CUDA))
    assert _losses(_run(tmp_path, CUDA, "device.compile=true")) == pytest.approx(plain, rel=1e-4)


def test_memory_is_what_the_first_steps_took(tmp_path):
    """A step that asks the GPU for more is a row of the log's decisions."""
    from hpcpipe.events import open_run

    _run(tmp_path, CUDA, "job.steps=12", 'schedule.hint="1f1b"', 'schedule.dispatch="fixed"')
    log = open_run(tmp_path / "runs" / "gpu" / "latest")
    decisions = log.ranks[0].decisions
    assert [why for what, why in zip(decisions.what, decisions.why, strict=True) if "memory" in str(what)] == []
