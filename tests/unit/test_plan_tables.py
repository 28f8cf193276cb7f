"""Tables of torch.distributed.pipelining: both sides read what the other writes, and every fault has its place."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_schedules import load, simulated, table_of
from virtual_pipeline import VirtualPipeline

from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, check_order, read_table, write_table
from hpcpipe.plan.hints import FAMILIES, ORDERS, placement_of
from hpcpipe.plan.hints.table import TableError

TORCH = [
    ("ScheduleGPipe", 3, 1, 5),
    ("ScheduleGPipe", 4, 1, 2),
    ("ScheduleLoopedBFS", 4, 2, 6),
    ("ScheduleInterleaved1F1B", 2, 2, 4),
    ("ScheduleInterleaved1F1B", 4, 2, 8),
    ("ScheduleInterleaved1F1B", 4, 3, 10),
    ("ScheduleInterleavedZeroBubble", 4, 2, 8),
    ("ScheduleInterleavedZeroBubble", 4, 1, 8),
    ("ScheduleZBVZeroBubble", 4, 2, 8),
    ("ScheduleZBVZeroBubble", 4, 2, 3),
]


def our_orders(name, stages, microbatches, **more):
    orders = [ORDERS[name](stage=s, stages=stages, microbatches=microbatches, **more) for s in range(stages)]
    return orders, placement_of(name, stages=stages, chunks=more.get("chunks"))


@pytest.mark.parametrize(("name", "ranks", "chunks", "microbatches"), TORCH)
def test_what_torch_writes_is_read(name, ranks, chunks, microbatches):
    text = table_of(name, ranks, chunks, microbatches)
    table = read_table(text)
    shape = "v" if "ZBV" in name else "round-robin"
    assert table.placement == Placement(ranks, chunks, shape)
    assert table.microbatches == microbatches
    assert table.split == ("Zero" in name)
    ours = write_table(table.orders, table.placement, split=table.split)
    actions = [[cell for cell in line.split(",") if cell] for line in text.splitlines()]
    if not re.search("[0-9]B[0-9]", text) or not table.split:  # where it splits, a whole B becomes I and W
        assert [line.split(",") for line in ours.splitlines()] == [
            [cell for cell in row if "REDUCE_GRAD" not in cell] for row in actions
        ]


@pytest.mark.parametrize("microbatches", [4, 8, 13])
def test_the_1f1b_of_torch_is_ours(microbatches):
    """torch 2.13 draws its last rank with forwards numbered from 1; what it runs there begins with 0."""
    rows = table_of("Schedule1F1B", 4, 1, microbatches).splitlines()
    if "3F0" not in rows[3].split(","):
        with pytest.raises(TableError, match="row 4, column 2: 3B0 comes before 3F0"):
            read_table("\n".join(rows))
        rows[3] = re.sub("3F([0-9]+)", lambda found: f"3F{int(found[1]) - 1}", rows[3])
    table = read_table("\n".join(rows))
    assert list(table.orders) == our_orders("1f1b", 4, microbatches)[0]
    assert table.peaks.in_flight == (4, 3, 2, 1)


def test_a_whole_backward_in_a_split_table_is_its_two_halves():
    table = read_table("0F0,0F1,0B0,0I1,0W1\r\n")
    assert table.split
    assert " ".join(map(str, table.orders[0])) == "F0 F1 B0 W0 B1 W1"


def test_overlapped_actions_are_refused_and_read_once_written_apart():
    text = table_of("ScheduleDualPipeV", 4, 2, 10)
    with pytest.raises(TableError, match=r"row 1, column 18: \(0F7;7B3\)OVERLAP_F_B overlaps .* cells of their own"):
        read_table(text)
    table = read_table(re.sub(r"\(([^;]*);([^)]*)\)OVERLAP_F_B", r"\1,\2", text))
    assert table.placement == Placement(4, 2, "v")
    assert table.split  # its W are late only in the drain


@pytest.mark.parametrize("microbatches", [1, 3, 8, 9])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("gpipe", {}),
        ("1f1b", {}),
        ("kfkb", {"k": 2}),
        ("interleaved", {"chunks": 2}),
        ("interleaved", {"chunks": 3}),
        ("zb-h1", {}),
        ("zb-h2", {}),
        ("zbv", {}),
    ],
)
def test_torch_reads_every_order_of_ours_and_can_run_it(name, more, microbatches, tmp_path):
    stages = 4
    orders, placement = our_orders(name, stages, microbatches, **more)
    path = tmp_path / "order.csv"
    path.write_text(write_table(orders, placement, split=FAMILIES[name].split), newline="")
    schedule = load(path, stages, placement.chunks, microbatches)  # validates, and finds its messages
    assert {v: placement.owner(v)[0] for v in range(placement.virtual_stages)} == schedule.stage_index_to_group_rank
    letters = {Kind.F: "F", Kind.B: "I" if FAMILIES[name].split else "B", Kind.W: "W"}
    assert simulated(schedule) == [
        [f"{placement.virtual(stage, t.chunk)}{letters[t.kind]}{t.microbatch}" for t in order]
        for stage, order in enumerate(orders)
    ]


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(sorted(FAMILIES)),
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 12),
    chunks=st.integers(1, 4),
    k=st.integers(1, 5),
    idle=st.randoms(use_true_random=False),
)
def test_orders_come_back_as_they_were_written_whatever_idles_between(name, stages, microbatches, chunks, k, idle):
    more = {"k": k} if name == "kfkb" else {"chunks": chunks} if name == "interleaved" else {}
    orders, placement = our_orders(name, stages, microbatches, **more)
    text = write_table(orders, placement, split=FAMILIES[name].split)
    loose = re.sub(",", lambda _: "," * idle.randint(1, 3), text)
    for version in (text, loose, text.replace("\r\n", "\n") + "\n\n"):
        table = read_table(version)
        assert list(table.orders) == orders
        assert table.microbatches == microbatches
        assert table.split == FAMILIES[name].split
        assert table.placement.shape == placement.shape or stages == 1
        assert write_table(table.orders, table.placement, split=table.split) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "row 1, column 1: no rows"),
        ("\r\n\r\n", "row 1, column 1: no rows"),
        ("0F0,hello,0B0", "row 1, column 2: 'hello' is no action; write <virtual stage><F, B, I or W><micro-batch>"),
        ("0F0,0SEND_F0,0B0", "row 1, column 2: 0SEND_F0 is a message;"),
        ("0UNSHARD,0F0,0B0", "row 1, column 1: 0UNSHARD gathers or frees parameters"),
        ("0F0,0B0,0F0", "row 1, column 3: 0F0 stands in column 1 already"),
        ("0F0,0W0,0I0", "row 1, column 2: 0W0 comes before 0I0"),
        ("0B0,0F0", "row 1, column 1: 0B0 comes before 0F0"),
        ("0F0,0B0,0W0", "row 1, column 3: 0W0 is part of 0B0 in column 2"),
        ("0F0,0I0,0B0,0W0", "row 1, column 3: 0B0 contains 0I0 of column 2"),
        ("0F0,0I0,0F1,0B1", "row 1, column 5: the row ends without 0W0"),
        ("0F0,0B0,0F1", "row 1, column 4: the row ends without 0B1"),
        ("0F0,0B0\n\n1F0,1B0", "row 2, column 1: a row without work"),
        ("0F0,0B0\n0F0,1F0,1B0", "row 2, column 1: 0F0 belongs to virtual stage 0, which row 1 has already"),
        ("0F0,0B0\n2F0,2B0", "row 2, column 1: 2F0 is of virtual stage 2, but virtual stage 1 stands nowhere"),
        ("0F0,0B0\n1F0,2F0,2B0,1B0", "row 2, column 2: 3 virtual stages on 2 rows"),
        ("1F0,1B0\n0F0,0B0", "row 1, column 1: 1F0: virtual stage 1 belongs on row 2"),
        ("0F0,0B0,0F2,0B2", "row 1, column 3: 0F2 is of micro-batch 2, but micro-batch 1 is nowhere"),
        ("999999999F0,0F999999999", "is of virtual stage 999999999, but virtual stage 1 stands nowhere"),
    ],
)
def test_a_fault_is_named_with_row_and_column(text, fault):
    with pytest.raises(TableError, match="^" + re.escape(fault) if fault.startswith("row") else re.escape(fault)):
        read_table(text)


def test_all_faults_are_told_in_the_order_of_the_text():
    with pytest.raises(TableError) as error:
        read_table("0F0,x\n1F0,,y")
    assert [(fault.row, fault.column) for fault in error.value.faults] == [(1, 2), (2, 3)]
    with pytest.raises(TableError, match="and 30 more"):
        read_table(",".join(["x"] * 50))


def test_rows_that_wait_for_each_other_are_named_with_their_cells():
    with pytest.raises(TableError) as error:
        read_table("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1")
    assert str(error.value).splitlines() == [
        "row 1, column 2: 0B0 waits in a circle: it needs 1B0, row 2, column 3",
        "row 2, column 1: 1F1 waits in a circle: it needs 0F1, row 1, column 3",
    ]


def test_chunks_that_first_go_round_and_then_turn_are_refused():
    rows = ["0F0,2F0,4F0,7F0,7B0,4B0,2B0,0B0", "1F0,3F0,5F0,6F0,6B0,5B0,3B0,1B0"]
    with pytest.raises(TableError, match=r"^row 1, column 2: 2F0: .* neither round the rows nor in a V; .* on row 2"):
        read_table("\n".join(rows))


def file_schedule(text, dispatch, *, ordered=True, limits=None):
    table = read_table(text)
    limits = limits or (Limits(),) * table.placement.stages
    return Schedule(
        "file:order.csv",
        dispatch,
        table.placement,
        table.microbatches,
        limits,
        split=table.split,
        ordered=ordered,
        orders=table.orders,
    )


@pytest.mark.parametrize(("name", "ranks", "chunks", "microbatches"), TORCH)
@pytest.mark.parametrize("dispatch", ["fixed", "ready"])
def test_an_order_of_torch_is_a_hint(name, ranks, chunks, microbatches, dispatch):
    table = read_table(table_of(name, ranks, chunks, microbatches))
    schedule = file_schedule(table_of(name, ranks, chunks, microbatches), dispatch)
    run = VirtualPipeline.of(schedule, latency=lambda stage, task: (7 * stage + 3 * task.microbatch) % 5).run()
    assert all(plan.done for plan in run.plans)
    if dispatch == "fixed":
        assert tuple(map(tuple, run.order)) == table.orders
    else:
        assert [set(order) for order in run.order] == [set(order) for order in table.orders]


def test_under_readiness_the_order_of_a_file_only_ranks():
    """One stage has everything at once, so the ranking alone decides, and W fill in where the file has them."""
    schedule = file_schedule("0F1,0F0,0I1,0I0,0W0,0W1", "ready")
    run = VirtualPipeline.of(schedule).run()
    assert " ".join(map(str, run.order[0])) == "F1 F0 B1 B0 W0 W1"


def test_weights_that_ordered_accumulation_never_lets_run_are_refused():
    text = "0F0,0F1,0I1,0W1,0I0,0W0"
    with pytest.raises(ValueError, match=r"'file:order.csv' runs W1 before W0 on stage 0") as error:
        file_schedule(text, "fixed")
    assert all(way in str(error.value) for way in ('accumulate = "arrival"', 'dispatch = "ready"'))
    arrival = VirtualPipeline.of(file_schedule(text, "fixed", ordered=False)).run()
    assert [str(task) for task in arrival.order[0]] == ["F0", "F1", "B1", "W1", "B0", "W0"]
    ready = VirtualPipeline.of(file_schedule(text, "ready")).run()
    assert [str(task) for task in ready.order[0]] == ["F0", "F1", "B1", "B0", "W0", "W1"]


def test_orders_belong_to_a_hint_from_a_file_and_fit_the_schedule():
    table = read_table("0F0,0B0")
    with pytest.raises(ValueError, match="'file:x' needs the orders"):
        Schedule("file:x", "fixed", Placement(1), 1, (Limits(),))
    with pytest.raises(ValueError, match="'1f1b' makes its own orders"):
        Schedule("1f1b", "fixed", Placement(1), 1, (Limits(),), orders=table.orders)
    with pytest.raises(
        ValueError, match=r"\[2\] tasks on its stages; 1 stages of 1 chunks with 2 micro-batches have 4"
    ):
        Schedule("file:x", "fixed", Placement(1), 2, (Limits(),), orders=table.orders)
    assert Task(Kind.F, 0) in table.orders[0]


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["1f1b", "zb-h1", "zbv"]),
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    edits=st.lists(
        st.tuples(
            st.integers(0, 200),
            st.sampled_from(
                ["swap", "drop", "copy", "0F0", "1B1", "2I0", "0W1", "", "\n", "x", "\x00", "\u0663F\u0660", '"']
            ),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_damaged_table_is_read_as_a_proved_schedule_or_refused_with_places(name, size, edits):
    stages, microbatches = size
    orders, placement = our_orders(name, stages, microbatches)
    cells = re.split("(,|\r\n)", write_table(orders, placement, split=FAMILIES[name].split))
    for place, edit in edits:
        at = place % len(cells)
        if edit == "swap":
            cells[at], cells[at - 2] = cells[at - 2], cells[at]
        elif edit == "drop":
            cells.pop(at)
        elif edit == "copy":
            cells.insert(at, cells[at])
        else:
            cells[at] = edit
        cells = cells or [""]
    text = "".join(cells)
    try:
        table = read_table(text)
    except TableError as error:
        assert error.faults
        lines = text.splitlines() or [""]
        for fault in error.faults:
            assert 1 <= fault.row <= len(lines)
            assert 1 <= fault.column <= len(lines[fault.row - 1].split(",")) + 1
    else:
        check_order(table.orders, placement=table.placement, microbatches=table.microbatches, split=table.split)
