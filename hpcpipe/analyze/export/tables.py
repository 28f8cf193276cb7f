"""A run as a folder of tables for data frames, in Parquet or CSV: events, classified pieces of time, steps, decisions.

Columns and units are those of the log and of `frames`; large tables come in several files of some million rows each.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from hpcpipe.analyze.frames import frames
from hpcpipe.analyze.stream import row_ranges
from hpcpipe.analyze.whole_file import whole_file
from hpcpipe.analyze.windows import StepChoice, make_windows
from hpcpipe.events import RankLog, RunLog, held_open
from hpcpipe.events.tables import Events
from hpcpipe.plan import Kind, TimeClass

ROWS_A_FILE = 1_000_000
_KINDS = [kind.name for kind in Kind]
_CLASSES = [each.name.lower() for each in TimeClass]


def write_tables(run: RunLog, folder: Path | str, kind: str, steps: StepChoice = None) -> list[str]:
    """Write the tables of the chosen steps into a folder, made if need be, as "parquet" or "csv".

    Returns
    -------
    list
        A pattern for each table: what `polars.read_parquet(folder / pattern)` takes.

    Raises
    ------
    AnalysisError
        No such step.
    OSError
        A file cannot be written.
    """
    folder = Path(folder)
    windows, ranks = make_windows(run, steps)
    first, last = int(windows.steps[0]), int(windows.steps[-1])
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "pieces": (frame.with_columns(step=pl.lit(step, pl.Int32)) for step, frame in frames(run, steps)),
        "events": (
            frame.filter(pl.col("step").is_between(first, last))
            for rank in ranks
            for frame in _events(rank, row_ranges(rank, windows))
        ),
        "steps": iter([pl.concat([_steps(rank) for rank in ranks]).filter(pl.col("step").is_between(first, last))]),
        "decisions": iter([pl.concat([_decisions(rank) for rank in ranks])]),
    }
    return [_write(folder, name, kind, parts) for name, parts in tables.items()]


def _write(folder: Path, name: str, kind: str, parts: Iterator[pl.DataFrame]) -> str:
    for old in (*folder.glob(f"{name}-*.{kind}"), *folder.glob(f"{name}.{kind}")):
        old.unlink()
    held: list[pl.DataFrame] = []
    number = 0
    for part in parts:
        held.append(part)
        if sum(map(len, held)) >= ROWS_A_FILE:
            _write_file(pl.concat(held), folder / f"{name}-{number:05d}.{kind}", kind)
            held, number = [], number + 1
    if number == 0:
        _write_file(pl.concat(held), folder / f"{name}.{kind}", kind)
        return f"{name}.{kind}"
    if held:
        _write_file(pl.concat(held), folder / f"{name}-{number:05d}.{kind}", kind)
    return f"{name}-*.{kind}"


def _write_file(frame: pl.DataFrame, path: Path, kind: str) -> None:
    with whole_file(path) as partial:
        if kind == "parquet":
            frame.write_parquet(partial)
        else:
            frame.write_csv(partial)


def _events(rank: RankLog, ranges: Iterator[tuple[int, int]]) -> Iterator[pl.DataFrame]:
    names = Events.column_names()
    with held_open([rank.rows]):
        for low, high in list(ranges) or [(0, 0)]:
            values = rank.rows.read(names, low, high)
            yield pl.DataFrame(
                {
                    "rank": np.full(high - low, rank.rank, dtype=np.int32),
                    "stage": np.full(high - low, rank.header.stage, dtype=np.int32),
                    **{name: values[name] for name in names},
                }
            ).with_columns(
                pl.Series("kind", _named(values["kind"], _KINDS)),
                pl.Series("wait_class", _named(values["wait_class"], _CLASSES)),
            )


def _named(codes: np.ndarray, names: list[str]) -> pl.Series:
    known = np.where(codes < len(names), codes, len(names)).astype(np.int64)
    return pl.Series([*names, ""], dtype=pl.Enum([*names, ""])).gather(known)


def _steps(rank: RankLog) -> pl.DataFrame:
    columns = {name: getattr(rank.steps, name) for name in rank.steps.column_names()}
    hints = [str(hint) for hint in columns.pop("hint").tolist()]
    return pl.DataFrame({"rank": np.full(len(rank.steps), rank.rank, dtype=np.int32), **columns}).with_columns(
        pl.Series("hint", hints, dtype=pl.String)
    )


def _decisions(rank: RankLog) -> pl.DataFrame:
    decisions = rank.decisions
    words = {
        name: [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in column.tolist()]
        for name, column in (("what", decisions.what), ("why", decisions.why))
    }
    return pl.DataFrame(
        {
            "rank": np.full(len(decisions), rank.rank, dtype=np.int32),
            "step": decisions.step.astype(np.int32),
            **{name: pl.Series(values, dtype=pl.String) for name, values in words.items()},
        }
    )
