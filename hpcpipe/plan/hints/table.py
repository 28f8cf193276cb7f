"""Orders as text: the compute-only CSV of torch.distributed.pipelining, one row a rank, read and written.

A cell is `<virtual stage><action><micro-batch>` such as `0F0`: F, B (the whole backward), I (its input gradient) or W
(its weight gradient); an empty cell is an idle slot. Texts come in and go out; files are opened by others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from re import fullmatch
from typing import NamedTuple

from hpcpipe.plan.check import OrdersWaitError, Peaks, check_order
from hpcpipe.plan.placement import Placement, Shape
from hpcpipe.plan.task import Kind, Task

_SHOWN = 20


class Fault(NamedTuple):
    """What is wrong in a cell; rows are lines and columns are cells, both counted from 1."""

    row: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"row {self.row}, column {self.column}: {self.message}"


class TableError(ValueError):
    """A table that is no schedule, with all faults that can be told at once, in the order of the text."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults))
        more = len(self.faults) - _SHOWN
        lines = [str(fault) for fault in self.faults[:_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Table:
    """The orders of all stages, checked: complete, executable and with their peaks.

    `split` says whether the backward is split; then B is the input gradient and every B has its W.
    """

    orders: tuple[tuple[Task, ...], ...]
    placement: Placement
    microbatches: int
    split: bool
    peaks: Peaks


class _Cell(NamedTuple):
    row: int
    column: int
    virtual: int
    action: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.virtual}{self.action}{self.microbatch}"

    def fault(self, message: str) -> Fault:
        return Fault(self.row + 1, self.column + 1, message)


def read_table(text: str) -> Table:
    """Return the schedule that a text holds.

    Stages, chunks, their placement and the micro-batches follow from the cells. Where the text has I or W anywhere, a B
    is read as I and W in turn. `REDUCE_GRAD` is left out: gradients are reduced after the last of them anyway.

    Raises
    ------
    TableError
        A `ValueError` with the row and column of every fault.
    """
    lines = text.removeprefix("\ufeff").splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise TableError([Fault(1, 1, "no rows; a table has one row a rank, with cells such as 0F0")])
    faults: list[Fault] = []
    rows = [list(_cells(row, line, faults)) for row, line in enumerate(lines)]
    _raise(faults)
    placement = _place(rows)
    microbatches = _count_microbatches(rows)
    split = any(cell.action in "IW" for cells in rows for cell in cells)
    _check_complete(rows, [len(line.split(",")) for line in lines], placement, microbatches)
    orders = tuple(tuple(_tasks(cells, placement, split)) for cells in rows)
    try:
        peaks = check_order(orders, placement=placement, microbatches=microbatches, split=split)
    except OrdersWaitError as error:
        raise TableError(_waits(error, rows, placement)) from None
    return Table(orders, placement, microbatches, split, peaks)


def write_table(orders: Sequence[Sequence[Task]], placement: Placement, *, split: bool) -> str:
    r"""Return the text of orders, without idle slots and with lines that end in "\r\n", as torch writes them.

    With `split`, B is the input gradient and is written as I.
    """
    names = {Kind.F: "F", Kind.B: "I" if split else "B", Kind.W: "W"}
    rows = (
        ",".join(f"{placement.virtual(stage, task.chunk)}{names[task.kind]}{task.microbatch}" for task in order)
        for stage, order in enumerate(orders)
    )
    return "".join(f"{row}\r\n" for row in rows)


def _cells(row: int, line: str, faults: list[Fault]) -> Iterator[_Cell]:
    for column, raw in enumerate(line.split(",")):
        text = raw.strip().strip('"').strip()
        if found := fullmatch(r"([0-9]{1,9})([FBIW])([0-9]{1,9})", text):
            yield _Cell(row, column, int(found[1]), found[2], int(found[3]))
        elif text and not fullmatch(r"[0-9]+REDUCE_GRAD[0-9]*", text):
            faults.append(Fault(row + 1, column + 1, _refusal(text)))


def _refusal(text: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    if text.endswith("OVERLAP_F_B"):
        return f"{shown} overlaps a forward and a backward on one device; write the two as cells of their own"
    if fullmatch(r"[0-9]+(UNSHARD|RESHARD)[0-9]*", text):
        return f"{shown} gathers or frees parameters, which a stage here keeps for the whole step; leave it out"
    if fullmatch(r"[0-9]+(SEND|RECV)_[FB][0-9]*", text):
        return (
            f"{shown} is a message; messages follow from the work, so write the table with compute only "
            '(torch: _dump_csv(name, format="compute_only"))'
        )
    return f"{shown!r} is no action; write <virtual stage><F, B, I or W><micro-batch>, such as 0F0, or nothing"


def _raise(faults: Sequence[Fault]) -> None:
    if faults:
        raise TableError(faults)


def _place(rows: Sequence[Sequence[_Cell]]) -> Placement:
    """Infer the placement from the rows on which the virtual stages stand."""
    faults: list[Fault] = []
    first: dict[int, _Cell] = {}
    for cells in rows:
        for cell in cells:
            seen = first.setdefault(cell.virtual, cell)
            if seen.row != cell.row:
                faults.append(
                    cell.fault(f"{cell} belongs to virtual stage {cell.virtual}, which row {seen.row + 1} has already")
                )
    faults += [Fault(row + 1, 1, "a row without work; every rank needs a stage") for row, c in enumerate(rows) if not c]
    _raise(faults)
    stages, virtual_stages = len(rows), len(first)
    top = first[max(first)]
    if top.virtual >= virtual_stages:
        missing = next(virtual for virtual in range(virtual_stages) if virtual not in first)
        _raise([top.fault(f"{top} is of virtual stage {top.virtual}, but virtual stage {missing} stands nowhere")])
    if virtual_stages % stages:
        raise TableError(
            [top.fault(f"{virtual_stages} virtual stages on {stages} rows; every row needs the same number of them")]
        )
    shapes: tuple[Shape, ...] = ("round-robin", "v")
    placements = [Placement(stages, virtual_stages // stages, shape) for shape in shapes]
    for placement in placements:
        if all(placement.owner(virtual)[0] == cell.row for virtual, cell in first.items()):
            return placement
    faults = []
    for virtual, cell in sorted(first.items()):
        wanted = [placement.owner(virtual)[0] + 1 for placement in placements]
        if cell.row + 1 not in wanted:
            faults.append(cell.fault(f"{cell}: virtual stage {virtual} belongs on row {_either(wanted)}"))
    if not faults:  # every one fits a shape, but not all the same
        shape = placements[1]
        faults = [
            cell.fault(f"{cell}: virtual stages go neither round the rows nor in a V; in a V it belongs on row {there}")
            for virtual, cell in sorted(first.items())
            if (there := shape.owner(virtual)[0] + 1) != cell.row + 1
        ]
    raise TableError(faults)


def _either(rows: Sequence[int]) -> str:
    around, turned = rows
    return f"{around}" if around == turned else f"{around} (dealt round the rows) or {turned} (in a V)"


def _count_microbatches(rows: Sequence[Sequence[_Cell]]) -> int:
    cells = [cell for row in rows for cell in row]
    seen = {cell.microbatch for cell in cells}
    top = max(cells, key=lambda cell: cell.microbatch)
    if top.microbatch >= len(seen):
        missing = next(m for m in range(len(seen)) if m not in seen)
        raise TableError([top.fault(f"{top} is of micro-batch {top.microbatch}, but micro-batch {missing} is nowhere")])
    return len(seen)


def _check_complete(
    rows: Sequence[Sequence[_Cell]], widths: Sequence[int], placement: Placement, microbatches: int
) -> None:
    """Check that every micro-batch goes forward and backward once through every virtual stage, F before B before W."""
    faults: list[Fault] = []
    for row, cells in enumerate(rows):
        seen: dict[tuple[int, int], dict[str, _Cell]] = {}
        for cell in cells:
            before = seen.setdefault((cell.virtual, cell.microbatch), {})
            faults += _clashes(cell, before)
            before.setdefault(cell.action, cell)
        for chunk in range(placement.chunks):
            virtual = placement.virtual(row, chunk)
            for microbatch in range(microbatches):
                for action in _missing(seen.get((virtual, microbatch), {})):
                    faults.append(
                        Fault(row + 1, widths[row] + 1, f"the row ends without {virtual}{action}{microbatch}")
                    )
    _raise(faults)


def _clashes(cell: _Cell, before: Mapping[str, _Cell]) -> list[Fault]:
    needed = {"F": "", "B": "F", "I": "F", "W": "I"}[cell.action]
    twice = before.get(cell.action)
    if twice is not None:
        return [cell.fault(f"{cell} stands in column {twice.column + 1} already")]
    if cell.action in "IW" and "B" in before:
        return [cell.fault(f"{cell} is part of {before['B']} in column {before['B'].column + 1}")]
    if cell.action == "B" and ("I" in before or "W" in before):
        part = before.get("I") or before["W"]
        return [cell.fault(f"{cell} contains {part} of column {part.column + 1}")]
    if needed and needed not in before:
        return [cell.fault(f"{cell} comes before {cell.virtual}{needed}{cell.microbatch}")]
    return []


def _missing(present: Mapping[str, _Cell]) -> list[str]:
    wanted = "F" if "B" in present else "FIW" if "I" in present or "W" in present else "FB"
    return [action for action in wanted if action not in present]


def _tasks(cells: Sequence[_Cell], placement: Placement, split: bool) -> Iterator[Task]:
    for cell in cells:
        chunk = placement.owner(cell.virtual)[1]
        yield Task({"F": Kind.F, "W": Kind.W}.get(cell.action, Kind.B), cell.microbatch, chunk)
        if split and cell.action == "B":
            yield Task(Kind.W, cell.microbatch, chunk)


def _waits(error: OrdersWaitError, rows: Sequence[Sequence[_Cell]], placement: Placement) -> list[Fault]:
    """Name the cells of a circle."""
    where: dict[tuple[int, int, str], _Cell] = {}
    for cells in rows:
        for cell in cells:
            for action in {"B": "BIW", "I": "BI"}.get(cell.action, cell.action):
                where[cell.virtual, cell.microbatch, action] = cell

    def cell_of(stage: int, task: Task) -> _Cell:
        return where[placement.virtual(stage, task.chunk), task.microbatch, task.kind.name]

    return [
        cell_of(stage, task).fault(
            f"{cell_of(stage, task)} waits in a circle: it needs {cell_of(*need)}, {_place_of(cell_of(*need))}"
        )
        for stage, task, need in error.circle
    ]


def _place_of(cell: _Cell) -> str:
    return f"row {cell.row + 1}, column {cell.column + 1}"
