"""Preempted links: the tenant's bursts, the shapes of models, what a log says of each phase, and the verdicts."""

import itertools

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from synthetic_log import ORIGIN, Pipeline, write_run
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hpcpipe.bench import shapes
from hpcpipe.bench.preempted import SYSTEMS, job_of
from hpcpipe.bench.preempted_picture import draw, smooth
from hpcpipe.bench.preempted_runs import InPhase, Trace, microbatch_sizes, ms_a_step, read_trace
from hpcpipe.bench.preempted_verdict import ADAPTIVE, ADAPTIVE_READY, BASE, best_fixed, doubts, names, verdicts
from hpcpipe.bench.shapes import gpt, unet
from hpcpipe.bench.tenant import Phase, bounds, bursts
from hpcpipe.cli import main
from hpcpipe.exit_code import ExitCode
from hpcpipe.plan import Kind
from hpcpipe.plan.caps import in_flight_caps

PHASES = (Phase("quiet", 10), Phase("light", 200, 0.4, 0.1, 1000), Phase("heavy", 200, 0.7, 0.15, 5000))


def test_phases_follow_each_other():
    assert bounds(PHASES) == [(0, 10), (10, 210), (210, 410)]


def test_bursts_lie_in_their_phases_one_after_the_other_with_the_phase_s_window():
    found = bursts(PHASES, seed=3, link=1)
    assert all(10 <= burst.begin < burst.end <= 410 for burst in found)
    assert all(one.end <= two.begin for one, two in itertools.pairwise(found))
    assert all(burst.window == (1000 if burst.begin < 210 else 5000) for burst in found)


@pytest.mark.parametrize(("phase", "busy", "burst_s"), [(1, 0.4, 0.1), (2, 0.7, 0.15)])
def test_a_tenant_sends_for_its_share_of_a_phase_in_bursts_of_the_mean_length(phase, busy, burst_s):
    begin, end = bounds(PHASES)[phase]
    lengths = [
        b.end - b.begin for link in range(8) for b in bursts(PHASES, seed=0, link=link) if begin <= b.begin < end
    ]
    assert sum(lengths) / (8 * (end - begin)) == pytest.approx(busy, rel=0.02)
    assert np.mean(lengths) == pytest.approx(burst_s, rel=0.02)
    assert max(lengths) <= 1.5 * burst_s


def test_bursts_depend_on_seed_and_link_and_on_nothing_else():
    assert bursts(PHASES, seed=1, link=0) == bursts(PHASES, seed=1, link=0)
    assert bursts(PHASES, seed=1, link=0) != bursts(PHASES, seed=2, link=0)
    assert bursts(PHASES, seed=1, link=0) != bursts(PHASES, seed=1, link=1)
    without_heavy = bursts(PHASES[:2], seed=1, link=0)
    assert without_heavy == [burst for burst in bursts(PHASES, seed=1, link=0) if burst.begin < 210]


def test_a_tenant_that_always_sends_never_pauses():
    found = bursts([Phase("full", 5, 1.0, 0.1, 1)], seed=0, link=0)
    assert (found[0].begin, found[-1].end) == (0, 5)
    assert all(one.end == two.begin for one, two in itertools.pairwise(found))


def test_the_stages_of_a_gpt_are_alike():
    shape = gpt(4)
    assert shape.work == shape.bytes_sent == (1, 1, 1, 1)


class _UNet(nn.Module):
    """U-Net with padded convolutions, as many do it; levels and channels of figure 1 of arXiv 1505.04597."""

    def __init__(self):
        super().__init__()
        sizes = [64, 128, 256, 512, 1024]
        ins = [1, *sizes]
        self.down = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)])
            for a, b in zip(ins, sizes, strict=False)
        )
        self.up = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.ConvTranspose2d(2 * c, c, 2, stride=2),
                    nn.Conv2d(2 * c, c, 3, padding=1),
                    nn.Conv2d(c, c, 3, padding=1),
                ]
            )
            for c in reversed(sizes[:-1])
        )

    def forward(self, x):
        values = []
        skips = []
        for level, (one, two) in enumerate(self.down):
            values.append(x := one(x))
            x = two(x)
            if level < 4:
                skips.append(x)
                x = nn.functional.max_pool2d(x, 2)
            values.append(x)
        for up, one, two in self.up:
            values.append(x := up(x))
            values.append(x := one(torch.cat([x, skips.pop()], dim=1)))
            values.append(x := two(x))
        return [value.numel() for value in values]


def test_the_layers_of_a_unet_cost_what_torch_counts_and_give_as_many_values():
    with torch.device("meta"):
        net, image = _UNet(), torch.empty(1, 1, 64, 64)
        with FlopCounterMode(display=False) as counter:
            values = net(image)
    order = [
        *(f"down.{i}.{j}" for i in range(5) for j in range(2)),
        *(f"up.{i}.{j}" for i in range(4) for j in range(3)),
    ]
    flops = [sum(counter.get_flop_counts()[f"_UNet.{name}"].values()) for name in order]
    layers = shapes._unet_layers()
    unit = 2 * 64 * 64 * 64 * 64  # a multiplication and an addition for each pair of channels and place
    assert [layer.work * unit for layer in layers] == pytest.approx(flops)
    assert [layer.values * 64 * 64 * 64 for layer in layers] == values


def test_skip_connections_travel_along_with_what_a_unet_s_stages_send():
    """Cut after every layer: the layer's own output and each skip connection that is still to be used (figure 1)."""
    down = [1, 1.25, 1.5, 1.625, 1.75, 1.8125, 1.875, 1.90625, 1.9375, 1.9375]
    up = [2, 1.875, 1.875, 2, 1.75, 1.75, 2, 1.5, 1.5, 2, 1]
    sent = unet(22).bytes_sent
    assert [share / sent[0] for share in sent] == pytest.approx([*down, *up, 1])


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_a_unet_is_cut_where_its_largest_stage_is_smallest(stages):
    works = [layer.work for layer in shapes._unet_layers()]
    least = {(0, 0): 0.0}
    for count in range(1, stages + 1):
        for end in range(len(works) + 1):
            options = [
                max(least[count - 1, cut], sum(works[cut:end])) for cut in range(end) if (count - 1, cut) in least
            ]
            if options:
                least[count, end] = min(options)
    shape = unet(stages)
    assert len(shape.work) == len(shape.bytes_sent) == stages
    assert max(shape.work) == pytest.approx(least[stages, len(works)] * stages / sum(works))
    assert sum(shape.work) == pytest.approx(stages)


def test_a_unet_has_no_more_stages_than_layers():
    with pytest.raises(ValueError, match="22 layers cannot be cut into 23 stages"):
        unet(23)


def test_a_step_that_a_stretch_of_time_cuts_counts_in_part():
    begins = np.array([0.0, 1.0, 3.0, 4.0])
    assert ms_a_step(begins, 0.0, 4.0) == pytest.approx(4000 / 3)
    assert ms_a_step(begins, 0.5, 2.0) == pytest.approx(1500)  # half of the first step and half of the second
    with pytest.raises(ValueError, match="do not span"):
        ms_a_step(begins, 1.0, 4.5)


def test_a_log_tells_the_steps_and_the_memory_of_each_phase(tmp_path):
    """(M + S - 1)(F + B) of 1F1B; stage s holds S - s micro-batches, and everything is twice as slow from step 2 on."""
    pipeline = Pipeline(
        stages=2,
        microbatches=4,
        forward=1,
        backward=2,
        steps=5,
        duration=lambda kind, step, _s, _m: 1_000_000 * (1 + kind) * (1 if step < 2 else 2),
    )
    write_run(tmp_path, pipeline)
    phases = [Phase("fast", 0.030), Phase("change", 0.001), Phase("slow", 0.059)]
    trace = read_trace(tmp_path, ORIGIN, phases, samples=16, sample_bytes=[10, 30])
    assert np.diff(trace.begins).tolist() == pytest.approx([0.015, 0.015, 0.030, 0.030, 0.030])
    fast, _, slow = trace.phases
    assert (fast.ms, fast.settled_ms, slow.ms, slow.settled_ms) == pytest.approx((15, 15, 30, 30))
    assert (fast.in_flight, slow.in_flight) == (2 * 4, 2 * 4)
    assert (fast.held_bytes, slow.held_bytes) == (4 * 30, 4 * 30), "one of 30 bytes weighs more than two of 10"
    assert (fast.groupings, slow.groupings) == ("x 4", "x 4"), "the log names no group"


def test_a_machine_that_stands_still_spoils_the_figures_of_that_phase_and_is_named(tmp_path):
    def duration(_kind, step, stage, microbatch):
        return 250_000_000 if (step, stage, microbatch) == (1, 1, 0) else 1_000_000

    write_run(tmp_path, Pipeline(stages=2, microbatches=4, forward=1, backward=1, steps=3, duration=duration))
    phases = [Phase("good", 0.010), Phase("bad", 0.500)]
    good, bad = read_trace(tmp_path, ORIGIN, phases, samples=16, sample_bytes=[1, 1]).phases
    assert (good.stood_still_s, bad.stood_still_s) == (0, pytest.approx(0.5)), "a forward and a backward of 0.25 s"
    assert doubts({("GPT", BASE): [good, bad]}, phases) == [
        "not to be trusted: GPT bad, fixed 1F1B: the machine stood still for 0.5 s"
    ]


def test_a_step_of_more_micro_batches_has_smaller_ones():
    kinds = np.array([Kind.F] * 4 + [Kind.B] * 4 + [Kind.F] * 8 + [Kind.B] * 8 + [Kind.F])
    steps = np.array([0] * 8 + [1] * 16 + [2])
    assert microbatch_sizes({"kind": kinds, "step": steps}, 16).tolist() == [4, 2, 16]


@pytest.mark.parametrize("shape", [gpt(4), unet(4), gpt(2)])
def test_every_system_holds_no_more_than_1f1b(tmp_path, shape):
    stages = len(shape.work)
    limits = set()
    for system in SYSTEMS:
        job = job_of(tmp_path, system, shape)
        batch, schedule = job.batch, job.schedule
        assert batch.microbatches * batch.microbatch_size == 16 * stages
        most = [schedule.k * (stages - s) for s in range(stages)]
        if system.hint == "bf":
            setting = schedule.in_flight
            most = in_flight_caps(setting, stages=stages, microbatches=batch.microbatches)
        assert max(most) * batch.microbatch_size == 4 * stages
        limits.add(job.tune.limit_bytes)
    sent = [round(4 * 6144 * share) for share in shape.bytes_sent]
    assert limits == {None, max((stages - s) * each for s, each in enumerate(sent))}


def _phase(ms, in_flight=4):
    return InPhase(ms, ms, in_flight, 0, "1 x 4")


def _figures(**changes):
    times = {BASE: (100, 200), "fixed 2F2B": (98, 150), "fixed 4F4B": (99, 160)}
    times |= {ADAPTIVE: (99, 155), ADAPTIVE_READY: (99, 140), "ready bf": (80, 100)}
    times |= {name.replace("_", " "): value for name, value in changes.items()}
    return {("GPT", name): [_phase(ms) for ms in each] for name, each in times.items()}


TWO = (Phase("quiet", 1), Phase("heavy", 1, 0.5, 0.1, 1))


def test_the_best_k_in_hindsight_is_a_fixed_order_of_that_phase():
    assert best_fixed(_figures(), "GPT", 0) == ("fixed 2F2B", 98)
    assert best_fixed(_figures(), "GPT", 1) == ("fixed 2F2B", 150)
    assert names([1, 2, 8]) == ["fixed 1F1B", "fixed 2F2B", "fixed 8F8B"]


def test_aims_that_are_met_say_by_how_much():
    sentences = verdicts(_figures(), TWO)
    assert [sentence.split(":")[0] for sentence in sentences] == ["met"] * 4
    assert sentences[0].endswith("(+1.0% to +3.3%)")  # 99 / 98 and 155 / 150
    assert sentences[1].endswith("(+29.0% to +29.0%)")  # 200 / 155
    assert sentences[3].endswith("(+10.7% to +10.7%)")  # 155 / 140


def test_aims_that_are_not_met_say_where():
    sentences = verdicts(_figures(adaptive_fixed=(102, 196), adaptive_ready=(99, 190)), TWO)
    assert sentences[0] == "not met: adaptive fixed within 5% of the best k in hindsight: GPT heavy +30.7%"
    assert sentences[1] == "not met: adaptive fixed at least 4% over 1F1B where preempted: GPT heavy +2.0%"
    assert sentences[2] == "not met: adaptive fixed loses under 1% to 1F1B where quiet: GPT quiet -2.0%"
    assert sentences[3] == "not met: adaptive ready at least 5% over adaptive fixed: GPT heavy +3.2%"


def test_nothing_is_judged_that_did_not_run():
    figures = {key: value for key, value in _figures().items() if "adaptive" not in key[1]}
    assert verdicts(figures, TWO) == []


def test_a_running_median_hides_single_late_steps():
    assert smooth(np.array([1.0, 1, 9, 1, 1, 5, 5, 5]), 3).tolist() == [1, 1, 1, 1, 1, 5, 5, 5]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_step_times_and_k_are_drawn_over_the_phases(tmp_path, suffix):
    begins = np.linspace(-0.2, 2.2, 13)
    k = np.where(begins[:-1] < 1, 1, 4)
    trace = Trace(begins, k, 4 // k, (_phase(100), _phase(200)))
    path = tmp_path / f"picture{suffix}"
    draw(path, {(model, name): trace for model in ("GPT", "U-Net") for name in (BASE, ADAPTIVE, "ready bf")}, TWO)
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("file", "said"),
    [("course.gif", "course.gif: cannot draw a .gif; use .png or .svg"), ("nowhere/a.png", "there is no folder")],
)
def test_a_picture_that_cannot_be_drawn_is_refused_before_anything_runs(monkeypatch, file, said):
    monkeypatch.setattr("hpcpipe.bench.preempted.mpiexec_for_hosts", lambda _: pytest.fail("the benchmark began"))
    result = CliRunner().invoke(main, ["bench", "preempted", "--plot", file])
    assert result.exit_code == ExitCode.INPUT
    assert said in result.stderr


def test_preempted_links_are_refused_with_the_reason_where_hosts_cannot_be_made(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    result = CliRunner().invoke(main, ["bench", "preempted"])
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert "cannot be made here: no ip and no tc and no nsenter" in result.stderr
