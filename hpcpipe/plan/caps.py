"""From the cap settings of a job to the limits of every stage: how much may be in flight and stashed.

Memory is what a cap costs, so the default is the memory that the fixed order of the same placement needs at its
fullest stage. What a cap does to a running step stands in flight.py.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import ceil, floor
from re import fullmatch

from hpcpipe.plan.flight import Limits
from hpcpipe.plan.hints.interleaved import interleaved
from hpcpipe.plan.placement import Placement
from hpcpipe.plan.sizes import SIZE, parse_bytes
from hpcpipe.plan.task import Kind

Setting = str | int | Sequence[int]
"""`"equal-memory"`, `"1f1b"`, a multiple of it such as `"1.5x"`, whole micro-batches of a stage (one number for all
stages or a list), or memory such as `"2GB"` or `"512 MiB"`."""


def limits_for(
    placement: Placement,
    *,
    hint: str,
    microbatches: int,
    split: bool,
    in_flight: Setting = "equal-memory",
    stash: Setting | None = None,
    k: int | None = None,
    activation_bytes: Sequence[float] | None = None,
) -> tuple[Limits, ...]:
    """Return the limits of every stage under readiness; a fixed order bounds itself and needs none.

    With one chunk the caps are flat. Chunks never share a cap alone: what a stage may hold is dealt out among them by
    how far each is from the end of the chain, because an activation is held for as long as the way there and back
    takes. That makes ZBV's own peaks by chunk of ZBV's memory (arXiv 2401.10241, section 6). The hint `interleaved`
    takes S micro-batches through a chunk at a time, so where it has at least its own memory each chunk may hold what
    the order holds at stage 0, while all together keep to the total.

    Parameters
    ----------
    in_flight
        Cap on n_F - n_B. `"1f1b"` is the profile of the placement's own order, in chunk forwards: S - s of 1F1B,
        2S of ZBV, 2(S - 1 - s) + (v - 1)S + 1 of interleaved 1F1B with v > 1 chunks. `"equal-memory"` gives every
        stage the memory of the fullest; with one chunk it is min(1.5 (S - s), S) rounded up, which leaves room for
        pending weight gradients, and with `k` it is kFkB's own profile k(S - s).
    stash
        Cap on n_F - n_W, for split backwards only; `"equal-memory"` (S, ZBV's 2S, …) where it is None.
    k
        The group of kFkB; None for other hints.
    activation_bytes
        What one micro-batch stashes on each whole stage; needed for settings in bytes.

    Raises
    ------
    ValueError
        A setting is none of these, lists another number of stages, leaves a chunk without room for one micro-batch, or
        caps the stash of a backward that is not split.
    """
    if stash is not None and not split:
        raise ValueError(
            f"stash cap {stash!r}: this schedule does not split its backward, so nothing is stashed beyond what is in "
            "flight; use in_flight, or a hint that splits"
        )
    stages, chunks = placement.stages, placement.chunks
    totals = _totals("in-flight cap", in_flight, placement, k, activation_bytes)
    flying = _deal("in-flight cap", totals, placement, microbatches)
    if chunks == 1 and in_flight == "equal-memory":
        flying = [(cap,) for cap in _roomy(stages, microbatches, k)]
    stashed: list[tuple[int, ...]] | list[None] = [None] * stages
    if split:
        stash_totals = _totals("stash cap", "equal-memory" if stash is None else stash, placement, k, activation_bytes)
        stashed = _deal("stash cap", stash_totals, placement, microbatches)
    if chunks == 1:
        return tuple(Limits(f[0], None if s is None else s[0]) for f, s in zip(flying, stashed, strict=True))
    if hint == "interleaved" and not split and min(totals) >= max(_profile(placement)):
        return tuple(_in_groups(placement, total, microbatches) for total in totals)
    return tuple(Limits(in_flight_by_chunk=f, stash_by_chunk=s) for f, s in zip(flying, stashed, strict=True))


def in_flight_caps(setting: Setting, *, stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the in-flight cap of each stage with one chunk, as in `limits_for`."""
    limits = limits_for(Placement(stages), hint="bf", microbatches=microbatches, split=False, in_flight=setting)
    return tuple(cap for cap, *_ in limits if cap is not None)


def harmful(limits: Sequence[Limits], *, placement: Placement, microbatches: int) -> tuple[int, ...]:
    """Return the stages whose caps keep the pipeline slow even where nothing varies.

    With equal stages an activation of virtual stage i of V is held while F and B go V - i virtual stages there and
    back, (V - i)/v of a whole stage's t = F + B. One micro-batch each t therefore needs (V - i)/v of them held
    (Little's law); a cap c below that bounds the speed to cv/(V - i) of the best. With one chunk this is S - s.
    """
    return tuple(
        stage for stage, limit in enumerate(limits) if _is_below(limit, _needed(placement, stage, microbatches))
    )


def _needed(placement: Placement, stage: int, microbatches: int) -> list[int]:
    """Return what each chunk must hold so that no cap slows an even pipeline down."""
    return [min(microbatches, -(-ahead // placement.chunks)) for ahead in _ahead(placement, stage)]


def _ahead(placement: Placement, stage: int) -> list[int]:
    """Return how many virtual stages lie from each chunk's own to the end of the chain, its own included."""
    return [placement.virtual_stages - placement.virtual(stage, chunk) for chunk in range(placement.chunks)]


def _is_below(limit: Limits, needed: list[int]) -> bool:
    together = [cap for cap in (limit.in_flight, limit.stash) if cap is not None]
    by_chunk = [caps for caps in (limit.in_flight_by_chunk, limit.stash_by_chunk) if caps is not None]
    return any(cap < sum(needed) for cap in together) or any(
        cap < need for caps in by_chunk for cap, need in zip(caps, needed, strict=True)
    )


def _profile(placement: Placement, k: int | None = None) -> list[int]:
    """Return the peaks of the placement's own order, in chunk forwards (with `k` those of kFkB)."""
    stages, chunks = placement.stages, placement.chunks
    if chunks == 1:
        return [(k or 1) * (stages - stage) for stage in range(stages)]
    if placement.shape == "v":
        return [chunks * stages] * stages
    return [2 * (stages - 1 - stage) + (chunks - 1) * stages + 1 for stage in range(stages)]


def _in_groups(placement: Placement, total: int, microbatches: int) -> Limits:
    """Return limits under which interleaved 1F1B fits: its peaks by chunk at stage 0, scaled, and the total."""
    stages, chunks = placement.stages, placement.chunks
    held, peaks = [0] * chunks, [0] * chunks
    for kind, _, chunk in interleaved(stage=0, stages=stages, microbatches=4 * stages, chunks=chunks):
        held[chunk] += 1 if kind is Kind.F else -1
        peaks[chunk] = max(peaks[chunk], held[chunk])
    own = max(_profile(placement))
    caps = tuple(min(microbatches, -(-peak * total // own)) for peak in peaks)
    return Limits(in_flight=min(total, chunks * microbatches), in_flight_by_chunk=caps)


def _roomy(stages: int, microbatches: int, k: int | None) -> list[int]:
    """Return the in-flight caps of equal memory for one chunk."""
    caps = _profile(Placement(stages), k) if k else [min(ceil(1.5 * (stages - s)), stages) for s in range(stages)]
    return [min(cap, microbatches) for cap in caps]


def _totals(
    name: str, setting: Setting, placement: Placement, k: int | None, activation_bytes: Sequence[float] | None
) -> list[int]:
    """Return how many chunk forwards the setting gives each stage, all chunks together."""
    stages, chunks = placement.stages, placement.chunks
    if not isinstance(setting, str):
        numbers = [setting] * stages if isinstance(setting, int) else list(setting)
        if len(numbers) != stages:
            raise ValueError(f"{name} lists {len(numbers)} stages, the pipeline has {stages}")
        return [number * chunks for number in numbers]
    if setting == "equal-memory":
        return [max(_profile(placement, k))] * stages
    if setting == "1f1b":
        return _profile(placement)
    if found := fullmatch(r"([0-9]+(?:\.[0-9]+)?)x", setting):
        factor = Fraction(found[1])
        return [max(chunks, ceil(factor * own)) if factor else 0 for own in _profile(placement)]
    if SIZE.fullmatch(setting):
        return _fitting(name, setting, placement, activation_bytes)
    raise ValueError(
        f'unknown {name} {setting!r}; use "equal-memory", "1f1b", "2x", a number, a list, or bytes such as "2GB"'
    )


def _fitting(name: str, setting: str, placement: Placement, activation_bytes: Sequence[float] | None) -> list[int]:
    """Return how many chunk forwards of each stage fit into so many bytes."""
    if activation_bytes is None:
        raise ValueError(f"{name} {setting!r} needs the bytes that a micro-batch stashes on each stage; use a number")
    if len(activation_bytes) != placement.stages:
        raise ValueError(f"{name}: bytes of {len(activation_bytes)} stages, the pipeline has {placement.stages}")
    totals = []
    for stage, whole in enumerate(activation_bytes):
        held = max(Fraction(whole), Fraction(1))  # one of no bytes counts as a byte
        total = floor(parse_bytes(setting) * placement.chunks / held)
        if total < placement.chunks:
            raise ValueError(
                f"{name} {setting!r} on stage {stage}: one micro-batch stashes {whole / 1e6:,.3f} MB there, "
                "so none fits; give more or use smaller micro-batches"
            )
        totals.append(total)
    return totals


def _deal(name: str, totals: list[int], placement: Placement, microbatches: int) -> list[tuple[int, ...]]:
    """Deal each stage's chunk forwards out among its chunks, by the largest remainder and at least 1 each."""
    chunks, dealt = placement.chunks, []
    for stage, total in enumerate(totals):
        if total < chunks:
            raise ValueError(f"{name} {total // chunks} on stage {stage}: at least 1 is needed")
        ahead = _ahead(placement, stage)
        shares = [Fraction(total * way, sum(ahead)) for way in ahead]
        caps = [max(1, floor(share)) for share in shares]
        order = sorted(range(chunks), key=lambda chunk: (floor(shares[chunk]) - shares[chunk], chunk))
        for chunk in order[: max(0, total - sum(caps))]:
            caps[chunk] += 1
        for _ in range(sum(caps) - total):  # a chunk's 1 was more than its share
            caps[caps.index(max(caps))] -= 1
        dealt.append(tuple(min(cap, microbatches) for cap in caps))
    return dealt
