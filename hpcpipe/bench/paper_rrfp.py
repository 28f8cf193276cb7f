"""RRFP's twelve settings (arXiv 2605.18750, table 1) in the simulator, beside the paper's own speedups.

The paper gives the spread of its times but not their distribution, no micro-batch size and no memory; what stands in
for these is in the notes of the table.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import asinh, exp, sinh

from hpcpipe.bench.table import BenchTable, Column, Row
from hpcpipe.plan import Limits, Placement, Schedule
from hpcpipe.plan.delays import LognormalDelay
from hpcpipe.simulate import Link, LinkMessages, Lognormal, Scenario, SimulatedRun, UsualTimes, simulate_run

Z95 = 1.6448536269514722
COMPUTE_SPREAD, NETWORK_SPREAD = 0.73, 58.74
"""(p95 - p5) / p50 of the paper's measured computation and communication times, section 2.2."""

FORWARD_MS, BACKWARD_MS = 17.5, 35.0
"""The middle of the ranges that the paper's figure 2 shows at 8 stages, taken so that a backward is two forwards."""

NETWORK_P95_MS = 30.0
"""The end of the range of communication times in figure 2."""

AGREEMENT_MS = 0.1
"""Table 3: 10 ms an iteration of 32 micro-batches and three kinds of work at two tensor-parallel ranks."""

IN_FLIGHT = 32
"""The paper's limit on forwards without their backward, the same on every stage."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of the paper's table: micro-batches of a step, and its speedups over 1F1B (ZB, BF, BFW)."""

    workload: str
    tensor: int
    pipeline: int
    microbatches: int
    published: tuple[float, float, float]


SETTINGS = (
    Setting("GPT3-Large", 1, 8, 64, (1.10, 1.43, 1.56)),
    Setting("GPT3-Large", 1, 16, 64, (1.20, 1.66, 1.77)),
    Setting("GPT3-Large", 2, 8, 64, (1.12, 1.21, 1.30)),
    Setting("GPT3-Large", 2, 16, 64, (1.15, 1.44, 1.49)),
    Setting("1.7B+ViT-H", 1, 8, 192, (1.16, 1.92, 2.02)),
    Setting("1.7B+ViT-H", 1, 16, 192, (1.22, 2.01, 2.09)),
    Setting("1.7B+ViT-H", 2, 8, 192, (1.09, 1.69, 1.75)),
    Setting("1.7B+ViT-H", 2, 16, 192, (1.05, 1.77, 1.86)),
    Setting("4B+ViT-Big", 1, 8, 192, (1.11, 1.79, 1.87)),
    Setting("4B+ViT-Big", 1, 16, 192, (1.10, 2.19, 2.29)),
    Setting("4B+ViT-Big", 2, 8, 96, (1.09, 1.62, 1.72)),
    Setting("4B+ViT-Big", 2, 16, 96, (1.05, 2.14, 2.24)),
)

NS = 1e6


def lognormal_sigma(spread: float) -> float:
    """Return the sigma of the lognormal whose (p95 - p5) / p50 is the spread: 2 sinh(z95 sigma)."""
    return asinh(spread / 2.0) / Z95


def run(
    steps: int = 4, *, settings: tuple[Setting, ...] = SETTINGS, progress: Callable[[], object] = lambda: None
) -> BenchTable:
    """Simulate every setting for some steps; `progress` is called after each."""
    rows: list[Row] = []
    for setting in settings:
        rows.append(_row(setting, steps))
        progress()
    compute, network = lognormal_sigma(COMPUTE_SPREAD), lognormal_sigma(NETWORK_SPREAD)
    return BenchTable(
        name="paper-rrfp",
        title="speedup over fixed 1F1B: RRFP's table 1 and the simulator",
        columns=(
            Column("workload"),
            *(Column(name) for name in ("TP", "PP", "M")),
            *(Column(name, "x") for name in ("ZB*", "BF*", "BFW*", "ZB", "BF", "BFW", "BF'", "BFW'", "BF=")),
            Column("memory", "micro-batches"),
        ),
        rows=rows,
        notes=(
            "starred: the paper's own (arXiv 2605.18750, table 1); the others are simulated, on the same draws",
            "primed: messages arrive in the order of sending, else they overtake; BF=: at 1F1B's own memory",
            "memory: most micro-batches that a stage holds under 1F1B, BF and BFW; the paper reports none",
            f"compute is lognormal, sigma {compute:.3f}, from the published (p95 - p5) / p50 = {COMPUTE_SPREAD}",
            f"messages are lognormal, sigma {network:.3f}, from the published {NETWORK_SPREAD}; their median is "
            f"{NETWORK_P95_MS / exp(Z95 * network):.2f} ms (p95 {NETWORK_P95_MS:g} ms, the end of figure 2)",
            f"a forward takes {FORWARD_MS} ms and a backward {BACKWARD_MS} ms at 8 stages, half at 16, for all "
            "workloads: nothing else is published; half of a backward is for the weights",
            f"micro-batches are single samples; BF and BFW keep at most {IN_FLIGHT} in flight, as in the paper",
            f"two tensor-parallel ranks agree in {AGREEMENT_MS} ms on what a message made ready (table 3)",
            "ZB is ZB-H1: which zero-bubble order the paper took is not said",
            "left out: costs that follow the micro-batch in the vision-language workloads, not published",
        ),
    )


def _row(setting: Setting, steps: int) -> Row:
    flat = (Limits(min(IN_FLIGHT, setting.microbatches)),) * setting.pipeline
    profile = tuple(Limits(setting.pipeline - stage) for stage in range(setting.pipeline))
    one_f = _simulate(setting, steps, "1f1b", "fixed")
    zb = _simulate(setting, steps, "zb-h1", "fixed", split=True)
    bf = _simulate(setting, steps, "bf", "ready", flat)
    bfw = _simulate(setting, steps, "bfw", "ready", flat, split=True)
    equal = _simulate(setting, steps, "bf", "ready", profile)
    baseline = _simulate(setting, steps, "1f1b", "fixed", overtaking=False)
    in_order = [
        _simulate(setting, steps, hint, "ready", flat, split=hint == "bfw", overtaking=False) for hint in ("bf", "bfw")
    ]
    return (
        setting.workload,
        setting.tensor,
        setting.pipeline,
        setting.microbatches,
        *setting.published,
        *(one_f.wall_ns / each.wall_ns for each in (zb, bf, bfw)),
        *(baseline.wall_ns / each.wall_ns for each in in_order),
        one_f.wall_ns / equal.wall_ns,
        " ".join(str(max(each.peak_stash)) for each in (one_f, bf, bfw)),
    )


def _simulate(
    setting: Setting,
    steps: int,
    hint: str,
    dispatch: str,
    limits: tuple[Limits, ...] | None = None,
    *,
    split: bool = False,
    overtaking: bool = True,
) -> SimulatedRun:
    stages = setting.pipeline
    scale = 8 / stages * NS
    sigma = lognormal_sigma(NETWORK_SPREAD)
    median = NETWORK_P95_MS * NS / (sinh(Z95 * sigma) + (1 + sinh(Z95 * sigma) ** 2) ** 0.5)
    times = UsualTimes(
        forward=[FORWARD_MS * scale] * stages,
        backward=[BACKWARD_MS * scale] * stages,
        weight=[BACKWARD_MS / 2 * scale] * stages,
        split=split,
        compute=Lognormal(lognormal_sigma(COMPUTE_SPREAD)),
    )
    return simulate_run(
        Scenario(
            schedule=Schedule(
                hint, dispatch, Placement(stages), setting.microbatches, limits or (Limits(),) * stages, split, False
            ),
            times=times,
            messages=LinkMessages(Link(delay=LognormalDelay(median, sigma, overtaking))),
            agreement_ns=round(AGREEMENT_MS * NS) if setting.tensor > 1 else 0,
        ),
        range(steps),
    )
