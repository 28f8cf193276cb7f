"""Learning rates, the loss scale, clipping and optimizer state, each against torch's own."""

import itertools
import math
import subprocess
import sys

import pytest
import torch
from job_text import VALID

from hpcpipe.job import load_job
from hpcpipe.train.clip import judge
from hpcpipe.train.metrics import StepMetrics
from hpcpipe.train.optimizer import make_optimizer
from hpcpipe.train.scaler import LossScale
from hpcpipe.train.schedule import learning_rate

PEAK, WARMUP, STEPS, LEAST = 0.01, 5, 25, 0.001


def _torchs_rates(kind):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    lr = torch.optim.lr_scheduler
    after = {
        "constant": lambda: lr.ConstantLR(optimizer, 1.0),
        "linear": lambda: lr.LinearLR(optimizer, 1.0, LEAST / PEAK, STEPS - WARMUP),
        "cosine": lambda: lr.CosineAnnealingLR(optimizer, STEPS - WARMUP, LEAST),
    }[kind]()
    warm = lr.LinearLR(optimizer, 1 / WARMUP, total_iters=WARMUP - 1)
    both = lr.SequentialLR(optimizer, [warm, after], [WARMUP])
    for _ in range(STEPS):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        both.step()


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_learning_rates_are_those_of_torchs_schedulers(kind):
    ours = [
        learning_rate(step, peak=PEAK, schedule=kind, warmup=WARMUP, steps=STEPS, least=LEAST) for step in range(STEPS)
    ]
    assert ours == pytest.approx(list(_torchs_rates(kind)), rel=1e-12)


def test_the_loss_scale_moves_as_torch_amps_does():
    finite = [True] * 7 + [False, True, False, False] + [True] * 12 + [False]
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    ours = LossScale(1024.0, dynamic=True, interval=3)
    for good in finite:
        assert ours.value == theirs.get_scale()
        optimizer.zero_grad()
        theirs.scale(parameter.sum() * (1.0 if good else math.inf)).backward()
        theirs.step(optimizer)
        theirs.update()
        ours.update(finite=good)
    assert ours.value == theirs.get_scale() != 1024.0


def test_a_constant_loss_scale_stays():
    scale = LossScale(8.0)
    for finite in (True, False) * 5:
        scale.update(finite=finite)
    assert scale.value == 8.0


def _squares(gradients):
    return [float(torch.linalg.vector_norm(g, dtype=torch.float64)) ** 2 for g in gradients]


@pytest.mark.parametrize("clip", [0.5, 3.0, 1e6])
@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_norm_and_factor_are_those_of_clip_grad_norm(clip, scale):
    generator = torch.Generator().manual_seed(5)
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (7, 1, 400, 33)]
    for p in parameters:
        p.grad = torch.randn(p.shape, generator=generator)
    before = [p.grad.clone() for p in parameters]
    verdict = judge(_squares([g * scale for g in before]), members=range(4), clip=clip, scale=scale)
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    assert verdict.norm == pytest.approx(norm.item(), rel=1e-6)
    for p, g in zip(parameters, before, strict=True):
        torch.testing.assert_close(g * scale * verdict.factor, p.grad, rtol=1e-6, atol=0)


def test_the_norm_has_the_same_bits_however_the_ranks_are_ordered_and_zeros_dealt_in():
    squares = [1e16, 1.0, -0.0, 3.5e-9, 1e8, 7.0]
    wanted = judge(squares, members=range(6), clip=1.0, scale=1.0)
    for order in itertools.permutations(squares):
        assert judge([*order, 0.0], members=range(7), clip=1.0, scale=1.0) == wanted
    assert wanted.norm == pytest.approx(math.sqrt(1e16 + 1e8 + 8), rel=1e-7)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_rank_that_is_not_finite_makes_the_step_so_for_all_even_for_other_stages(bad):
    verdict = judge([1.0, 2.0, bad], members=[0, 1], clip=1.0, scale=1.0)
    assert (verdict.finite, verdict.factor) == (False, 0.0)


def test_only_members_count_for_the_norm():
    assert judge([9.0, 16.0, 1e9], members=[0, 1], clip=None, scale=1.0).norm == 5.0


@pytest.mark.parametrize(
    "settings",
    ['name = "adamw"\n', 'name = "adam"\n', 'name = "sgd"\n', 'name = "sgd"\nmomentum = 0.9\n'],
)
@pytest.mark.parametrize("decays", [False, True])
def test_state_that_is_there_from_the_beginning_changes_no_bit(tmp_path, settings, decays):
    (tmp_path / "corpus.txt").write_bytes(b"x" * 1000)
    path = tmp_path / "job.toml"
    path.write_text(VALID + f"[optimizer]\n{settings}")
    job = load_job(path)
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(50, generator=generator)
    mine, theirs = torch.nn.Parameter(first.clone()), torch.nn.Parameter(first.clone())
    ours = make_optimizer(job, mine, decays)
    decay = {"weight_decay": job.optimizer.weight_decay if decays else 0.0}
    if job.optimizer.name == "sgd":
        usual = torch.optim.SGD([theirs], lr=job.optimizer.lr, momentum=job.optimizer.momentum, **decay)
    else:
        rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[job.optimizer.name]
        usual = rule([theirs], lr=job.optimizer.lr, betas=job.optimizer.betas, eps=job.optimizer.eps, **decay)
    kept = {name: value.numel() for name, value in ours.state[mine].items()}
    for _ in range(3):
        mine.grad = torch.randn(50, generator=generator)
        theirs.grad = mine.grad.clone()
        ours.step()
        usual.step()
    assert torch.equal(mine, theirs)
    assert {name: value.numel() for name, value in usual.state[theirs].items() if value is not None} == kept


UPDATES = """
import sys, torch
from hpcpipe.job import load_job
from hpcpipe.train import Layout
from hpcpipe.train.optimizer import make_optimizer
assert Layout.of(load_job(sys.argv[1])).num_parameters(0) > 0
for name in ("adamw", "adam", "sgd"):
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = make_optimizer(load_job(sys.argv[1], [f"optimizer.name={name}"]), parameter, True)
    parameter.grad = torch.ones(2)
    optimizer.step()
    assert parameter.detach().abs().sum() > 0
assert "torch._dynamo" not in sys.modules
"""


def test_counting_parameters_and_updating_them_does_not_import_torchs_compiler(tmp_path):
    """Every rank of every run would pay for it before its first step."""
    (tmp_path / "corpus.txt").write_bytes(b"x" * 1000)
    (tmp_path / "job.toml").write_text(VALID)
    subprocess.run([sys.executable, "-c", UPDATES, tmp_path / "job.toml"], check=True, timeout=100)


def test_tensorboard_files_hold_the_metrics_and_leave_out_what_is_no_number(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from hpcpipe.train.tensorboard import TensorBoard

    board = TensorBoard(tmp_path)
    for step, loss in enumerate([2.0, math.nan, 1.0]):
        board.write(StepMetrics(step, loss, 0.5, 1e-3, 100, 2_000_000_000, "bf", 0, "ready"))
    board.close()
    board.close()
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(each.step, each.value) for each in found.Scalars("loss")] == [(0, 2.0), (2, 1.0)]
    assert [each.value for each in found.Scalars("tokens_per_s")] == [50.0] * 3
