"""What the live choice of k is worth in each phase of a preempted network, against the aims set for it.

Figures in, sentences out; how they were measured is not known here.
"""

from collections.abc import Callable, Mapping, Sequence

from hpcpipe.bench.preempted_runs import InPhase
from hpcpipe.bench.tenant import Phase

FIXED = (1, 2, 4)
BASE = "fixed 1F1B"
ADAPTIVE, ADAPTIVE_READY = "adaptive fixed", "adaptive ready"

REGRET, LEAST_GAIN, LOSS, READY_GAIN = 0.05, 0.04, 0.01, 0.05
"""The aims: within 5 % of the best k in hindsight; 4 % over 1F1B where preempted, the least of Ada-Grouper's 4 to 30 %
(arXiv 2303.01675); under 1 % lost where quiet; and readiness 5 % faster than the fixed order where messages jitter."""

STILL = 0.01
"""The share of a phase for which the machine may stand still."""

Figures = Mapping[tuple[str, str], Sequence[InPhase]]
"""By model and system, each phase's."""


def best_fixed(figures: Figures, model: str, phase: int) -> tuple[str, float]:
    """Return which fixed order was fastest in a phase, known only afterwards, and its time (ms)."""
    times = {system: each[phase].ms for (of, system), each in figures.items() if of == model}
    fixed = {system: time for system, time in times.items() if system == BASE or system in names(FIXED)}
    return min(fixed.items(), key=lambda item: item[1])


def names(ks: Sequence[int]) -> list[str]:
    """Return how the fixed orders are called."""
    return [BASE if k == 1 else f"fixed {k}F{k}B" for k in ks]


def verdicts(figures: Figures, phases: Sequence[Phase]) -> list[str]:
    """Return a sentence for each aim: met, or where it was not and by how much."""
    models = list(dict.fromkeys(model for model, _ in figures))
    every = [(model, number, phase) for model in models for number, phase in enumerate(phases)]
    regrets: list[tuple[str, float]] = []
    gains: list[tuple[str, float]] = []
    losses: list[tuple[str, float]] = []
    readies: list[tuple[str, float]] = []
    for model, number, phase in every:
        known = {system: each[number] for (of, system), each in figures.items() if of == model}
        adaptive, ready, base = (known.get(system) for system in (ADAPTIVE, ADAPTIVE_READY, BASE))
        where = f"{model} {phase.name}"
        if adaptive is None or base is None:
            continue
        regrets.append((where, adaptive.ms / best_fixed(figures, model, number)[1] - 1.0))
        (gains if phase.busy else losses).append((where, base.ms / adaptive.ms - 1.0))
        if ready is not None and phase.busy:
            readies.append((where, adaptive.ms / ready.ms - 1.0))
    aims = (
        (f"adaptive fixed within {REGRET:.0%} of the best k in hindsight", regrets, lambda share: share <= REGRET),
        (f"adaptive fixed at least {LEAST_GAIN:.0%} over 1F1B where preempted", gains, lambda x: x >= LEAST_GAIN),
        (f"adaptive fixed loses under {LOSS:.0%} to 1F1B where quiet", losses, lambda share: share > -LOSS),
        (f"adaptive ready at least {READY_GAIN:.0%} over adaptive fixed", readies, lambda x: x >= READY_GAIN),
    )
    return [_sentence(aim, found, good) for aim, found, good in aims if found]


def doubts(figures: Figures, phases: Sequence[Phase]) -> list[str]:
    """Return a sentence for each figure that the machine has spoilt, by standing still for 1 % of the phase or more."""
    return [
        f"not to be trusted: {model} {phase.name}, {system}: the machine stood still for {each.stood_still_s:.1f} s"
        for (model, system), known in figures.items()
        for phase, each in zip(phases, known, strict=True)
        if each.stood_still_s >= STILL * phase.seconds
    ]


def _sentence(aim: str, found: Sequence[tuple[str, float]], good: Callable[[float], bool]) -> str:
    missed = [f"{where} {share:+.1%}" for where, share in found if not good(share)]
    if missed:
        return f"not met: {aim}: {', '.join(missed)}"
    low, high = min(share for _, share in found), max(share for _, share in found)
    return f"met: {aim} ({low:+.1%} to {high:+.1%})"
