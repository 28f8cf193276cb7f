"""Caps from settings: equal to the peaks of the orders that they name, and harmful ones are known."""

import pytest
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import Kind, Limits, Placement, Schedule, check_order, chunk_profile, harmful, in_flight_caps
from hpcpipe.plan import limits_for as limits_of_placement
from hpcpipe.plan.hints import FAMILIES, ORDERS, SPLIT, placement_of

MANY = 1000


def limits_for(hint, stages, *, chunks=None, microbatches=MANY, **settings):
    placement = placement_of(hint, stages=stages, chunks=chunks) if hint in FAMILIES else Placement(stages, chunks or 1)
    split = settings.pop("split", hint in SPLIT)
    return limits_of_placement(placement, hint=hint, microbatches=microbatches, split=split, **settings)


def own_orders(hint, stages, microbatches, **more):
    orders = [ORDERS[hint](stage=s, stages=stages, microbatches=microbatches, **more) for s in range(stages)]
    placement = placement_of(hint, stages=stages, chunks=more.get("chunks"))
    return orders, check_order(orders, placement=placement, microbatches=microbatches, split=FAMILIES[hint].split)


def peaks_by_chunk(order, chunks, release):
    held, peaks = [0] * chunks, [0] * chunks
    for task in order:
        held[task.chunk] += (task.kind is Kind.F) - (task.kind is release)
        peaks[task.chunk] = max(peaks[task.chunk], held[task.chunk])
    return tuple(peaks)


def test_equal_memory_never_stashes_more_than_1f1b_does_at_stage_0():
    for stages in (1, 2, 3, 5, 8, 13, 32):
        _, peaks = own_orders("1f1b", stages, 2 * stages)
        caps = in_flight_caps("equal-memory", stages=stages, microbatches=MANY)
        assert max(caps) == caps[0] == max(peaks.in_flight)
        assert all(cap >= own for cap, own in zip(caps, peaks.in_flight, strict=True))
        split = limits_for("bfw", stages)
        assert [limit.in_flight for limit in split] == list(caps)
        assert [limit.stash for limit in split] == [stages] * stages


@pytest.mark.parametrize(
    ("setting", "caps"),
    [
        ("1f1b", (4, 3, 2, 1)),
        ("2x", (8, 6, 4, 2)),
        ("1.5x", (6, 5, 3, 2)),
        ("1.1x", (5, 4, 3, 2)),
        ("0.1x", (1, 1, 1, 1)),
        (3, (3, 3, 3, 3)),
        ([4, 3, 2, 9], (4, 3, 2, 9)),
    ],
)
def test_caps_are_resolved_per_stage(setting, caps):
    assert in_flight_caps(setting, stages=4, microbatches=100) == caps
    assert [limit.stash for limit in limits_for("zb-h1", 4, stash=setting)] == list(caps)


def test_a_multiple_is_not_rounded_up_for_the_error_of_a_float():
    assert in_flight_caps("1.1x", stages=10, microbatches=100)[0] == 11  # 1.1 * 10 is 11.000000000000002 in floats


def test_a_cap_is_never_above_the_number_of_microbatches():
    assert in_flight_caps(100, stages=2, microbatches=3) == (3, 3)
    assert limits_for("zbv", 4, microbatches=3)[0] == Limits(stash_by_chunk=(3, 1), in_flight_by_chunk=(3, 1))
    assert limits_for("interleaved", 4, chunks=2, microbatches=3)[0] == Limits(6, in_flight_by_chunk=(3, 3))


@pytest.mark.parametrize(("stages", "microbatches"), [(1, 4), (2, 8), (4, 16), (7, 30), (8, 32)])
def test_the_caps_of_zbv_are_the_peaks_of_its_order(stages, microbatches):
    orders, peaks = own_orders("zbv", stages, microbatches)
    assert max(peaks.stash) == 2 * stages
    for setting in ("equal-memory", "1f1b"):
        for stage, limit in enumerate(limits_for("zbv", stages, in_flight=setting, stash=setting)):
            own = peaks_by_chunk(orders[stage], 2, Kind.W)
            assert limit.stash_by_chunk == limit.in_flight_by_chunk == own == chunk_profile(stage=stage, stages=stages)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved_fits_exactly_into_its_own_equal_memory(stages, chunks):
    orders, peaks = own_orders("interleaved", stages, 10 * stages, chunks=chunks)
    for stage, limit in enumerate(limits_for("interleaved", stages, chunks=chunks)):
        assert limit.in_flight == max(peaks.in_flight) == (chunks + 1) * stages - 1
        own = peaks_by_chunk(orders[stage], chunks, Kind.B)
        assert all(peak <= cap for peak, cap in zip(own, limit.in_flight_by_chunk, strict=True))
    first = limits_for("interleaved", stages, chunks=chunks)[0].in_flight_by_chunk
    assert first == peaks_by_chunk(orders[0], chunks, Kind.B)
    sloping = limits_for("interleaved", stages, chunks=chunks, in_flight="1f1b")
    if stages > 1:
        assert [sum(limit.in_flight_by_chunk) for limit in sloping] == list(peaks.in_flight)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_the_caps_of_kfkb_are_the_peaks_of_its_order(k):
    _, peaks = own_orders("kfkb", 4, 20, k=k)
    assert [limit.in_flight for limit in limits_for("kfkb", 4, k=k)] == list(peaks.in_flight)
    assert [limit.in_flight for limit in limits_for("kfkb", 4, k=k, in_flight="1f1b")] == [4, 3, 2, 1]


@pytest.mark.parametrize("hint", ["bf", "bfw", "interleaved", "zbv"])
@pytest.mark.parametrize("setting", [1, 2, 5, 9, [3, 1, 4, 2], "3GB"])
def test_what_a_stage_may_hold_is_dealt_out_whole_and_every_chunk_gets_some(hint, setting):
    chunks = 2 if hint == "zbv" else 3
    limits = limits_for(hint, 4, chunks=chunks, in_flight=setting, activation_bytes=[0.5e9] * 4)
    for stage, limit in enumerate(limits):
        whole = {"3GB": 6}.get(setting, setting) if not isinstance(setting, list) else setting[stage]
        total = sum(limit.in_flight_by_chunk) if limit.in_flight is None else limit.in_flight
        assert total == whole * chunks  # the unit is whole micro-batches of a stage
        assert min(limit.in_flight_by_chunk) >= 1
        assert limit.in_flight is not None or limit.in_flight_by_chunk[0] == max(limit.in_flight_by_chunk)


@pytest.mark.parametrize(
    ("setting", "caps"),
    [("2GB", (2, 4)), ("2 GB", (2, 4)), ("1.5GiB", (1, 3)), ("1572864 KiB", (1, 3)), ("966.4 MB", (1, 1))],
)
def test_bytes_are_as_many_micro_batches_as_fit(setting, caps):
    limits = limits_for("bf", 2, in_flight=setting, activation_bytes=[966_367_642, 500e6])
    assert tuple(limit.in_flight for limit in limits) == caps


def test_bytes_too_few_for_one_micro_batch_are_refused_with_its_size():
    with pytest.raises(ValueError, match=r"in-flight cap '512 MiB' on stage 1: one micro-batch stashes 966.368 MB"):
        limits_for("bf", 2, in_flight="512 MiB", activation_bytes=[1e6, 966_367_642])


@pytest.mark.parametrize(
    "setting", [0, [1, 0], [1, 2, 3], "7", "0x", "-1x", "x", "nanx", "two", "0B", "1_000kB", "2e9B", "2G"]
)
@pytest.mark.parametrize("chunks", [1, 2])
def test_a_cap_that_cannot_be_is_refused(setting, chunks):
    with pytest.raises(ValueError, match="in-flight cap"):
        limits_for("bfw", 2, chunks=chunks, in_flight=setting, activation_bytes=[1.0, 1.0])
    with pytest.raises(ValueError, match="stash cap"):
        limits_for("bfw", 2, chunks=chunks, stash=setting, activation_bytes=[1.0, 1.0])


def test_bytes_hold_any_number_of_activations_of_no_bytes():
    limits = limits_for("bf", 2, in_flight="1 GiB", activation_bytes=[0.0, 500e6])
    assert [limit.in_flight for limit in limits][1] == 2
    assert limits[0].in_flight is None or limits[0].in_flight >= 8


def test_bytes_need_the_size_of_the_activations():
    with pytest.raises(ValueError, match="'2GB' needs the bytes that a micro-batch stashes"):
        limits_for("bf", 2, in_flight="2GB")


def test_a_stash_cap_without_split_backward_is_refused():
    with pytest.raises(ValueError, match="does not split its backward"):
        limits_for("bf", 2, stash=4)


@pytest.mark.parametrize("microbatches", [1, 3, MANY])
@pytest.mark.parametrize("setting", ["equal-memory", "1f1b", "2x"])
def test_no_cap_that_follows_an_order_is_harmful(setting, microbatches):
    for hint in [*FAMILIES, "bf", "bfw"]:
        for chunks in (1, 2, 3, 4) if hint in ("interleaved", "bf", "bfw") else (None,):
            for stages in (1, 2, 3, 8):
                more = {"k": 3} if hint == "kfkb" else {}
                limits = limits_for(hint, stages, chunks=chunks, microbatches=microbatches, in_flight=setting, **more)
                placement = placement_of(hint, stages=stages, chunks=chunks) if hint in FAMILIES else None
                placement = placement or Placement(stages, chunks)
                assert harmful(limits, placement=placement, microbatches=microbatches) == ()


def test_a_flat_cap_below_the_stages_that_remain_names_them():
    assert harmful(limits_for("bf", 8, in_flight=4), placement=Placement(8), microbatches=MANY) == (0, 1, 2, 3)
    assert harmful(limits_for("bf", 8, in_flight=4, microbatches=4), placement=Placement(8), microbatches=4) == ()
    assert harmful(limits_for("bfw", 8, stash=7), placement=Placement(8), microbatches=MANY) == (0,)
    assert harmful(limits_for("zbv", 4, stash=2), placement=Placement(4, 2, "v"), microbatches=MANY) != ()


@pytest.mark.parametrize(("cap", "stages"), [(1, 4), (3, 4), (2, 6), (4, 8)])
def test_a_harmful_cap_slows_an_even_pipeline_as_littles_law_says(cap, stages):
    """Stage 0 holds a micro-batch for S(F + B), so c of them every S(F + B) is the most that a cap c lets through."""

    def period(setting):
        times = []
        for count in (20 * cap, 40 * cap):
            limits = limits_for("1f1b", stages, in_flight=setting, microbatches=count)
            schedule = Schedule("1f1b", "ready", Placement(stages), count, limits)
            times.append(VirtualPipeline.of(schedule).run().makespan)
        return (times[1] - times[0]) / (20 * cap)

    assert period("1f1b") == 3  # F + B
    assert harmful(limits_for("1f1b", stages, in_flight=cap), placement=Placement(stages), microbatches=MANY)
    assert period(cap) >= 3 * stages / cap
