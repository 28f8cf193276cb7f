"""Benchmarks on emulated devices: their simulations against closed forms, and the tasks that torch's modules sleep."""

import pytest
import torch

from hpcpipe.bench import torch_pipelining
from hpcpipe.bench.emulated import emulated_job, predicted
from hpcpipe.bench.pipeline import CASES, KNOWN_COSTS, PYRAMIDS, TORCH, cases_of, variabilities
from hpcpipe.plan import Kind
from hpcpipe.simulate import Link, LinkMessages

FORWARD, BACKWARD, WEIGHT = 5.0, 10.0, 5.0


def _job(folder, hint, *more, stages=4, microbatches=16):
    sizes = (f"parallel.pipeline={stages}", f"batch.microbatches={microbatches}", "job.steps=2")
    return emulated_job(folder, [*sizes, f'schedule.hint="{hint}"', 'schedule.dispatch="fixed"', *more])


@pytest.mark.parametrize(
    ("hint", "expected"),
    [("1f1b", (16 + 3) * (FORWARD + BACKWARD)), ("zb-h1", 16 * 15.0 + 3 * (FORWARD + BACKWARD - 2 * WEIGHT))],
)
def test_a_step_without_noise_takes_the_published_time_and_memory(tmp_path, hint, expected):
    """(M + S - 1)(F + B) for 1F1B, M (F + B) + (S - 1)(F + B - 2 W) for ZB-H1 (arXiv 2401.10241)."""
    steps = predicted(_job(tmp_path, hint))
    assert steps.ms == pytest.approx([expected, expected])
    assert (steps.in_flight, steps.stash) == (4, 4)


def test_two_chunks_count_as_one_whole_stage(tmp_path):
    assert predicted(_job(tmp_path, "zbv")).stash == 4


def test_messages_of_one_link_follow_each_other(tmp_path):
    """The fill waits for one message a stage, the drain too: each takes as long as a forward."""
    messages = LinkMessages(Link(num_bytes=1000, ns_per_byte=FORWARD * 1e3))
    steps = predicted(_job(tmp_path, "1f1b", stages=2, microbatches=1), messages)
    assert steps.ms == pytest.approx([2 * (FORWARD + BACKWARD) + 2 * FORWARD] * 2)


def test_every_case_is_a_job_for_every_kind_of_variability(tmp_path):
    for name, (compute, network) in variabilities(4).items():
        for case in cases_of(name, quick=False, torch=True):
            more = [each.format(twice=8) for each in case.overrides()]
            models = [f"variability.compute={compute}", f"variability.network={network}"]
            job = emulated_job(tmp_path, ["parallel.pipeline=4", "batch.microbatches=16", *more, *models])
            assert (job.schedule.hint, job.schedule.dispatch) == (case.hint, case.dispatch)
    names = [case.name for case in (*CASES, *PYRAMIDS, *TORCH)]
    assert len(set(names)) == len(names)
    assert set(KNOWN_COSTS) <= set(variabilities(4))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("split", [True, False])
def test_a_module_of_torch_sleeps_each_task_of_its_micro_batch_once(monkeypatch, first, split):
    slept = []
    monkeypatch.setattr(torch_pipelining.time, "sleep", lambda s: slept.append(round(s * 1e9)))

    def duration(step, kind, microbatch):
        return 1_000 * (step + 1) + 100 * microbatch + 10 * (kind + 1)

    module = torch_pipelining._sleeping(duration, 2, first=first, split=split)
    module.begin(3)
    outputs = [module(torch.zeros(1, 4, requires_grad=not first)) for _ in range(2)]
    assert slept == [4_010, 4_110]
    slept.clear()
    outputs[1].sum().backward()
    expected = [4_120, 4_130] if split else [4_120, 0]
    if first:
        expected = [sum(expected)]
    assert sorted(slept) == sorted(expected)


def test_only_what_the_weights_need_is_left_for_later_as_torch_splits_a_backward(monkeypatch):
    slept = []
    monkeypatch.setattr(torch_pipelining.time, "sleep", lambda s: slept.append(round(s * 1e9)))
    module = torch_pipelining._sleeping(lambda _step, kind, _m: 10 * (kind + 1), 1, first=False, split=True)
    module.begin(0)
    entry = torch.zeros(1, 4, requires_grad=True)
    output = module(entry)
    slept.clear()
    torch.autograd.grad(output.sum(), entry)
    assert slept == [10 * (Kind.B + 1)]
