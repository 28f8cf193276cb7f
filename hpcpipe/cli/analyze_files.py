"""The files that `hpcpipe analyze` writes beside its report: pictures, page, traces and tables; it parses nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcpipe.analyze import Report
    from hpcpipe.analyze.windows import StepChoice
    from hpcpipe.events import RunLog


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write; empty or None where nothing is."""

    pictures: Sequence[str] = ()
    page: Path | None = None
    perfetto: Path | None = None
    parquet: Path | None = None
    csv: Path | None = None

    def __bool__(self) -> bool:
        return any((self.pictures, self.page, self.perfetto, self.parquet, self.csv))


def write_files(
    run: "RunLog", report: "Report", steps: "StepChoice", wanted: Wanted, tell: Callable[[str], object]
) -> list[str]:
    """Write what is wanted and return a line about each for the reader; `tell` hears of each before it is written.

    Raises
    ------
    AnalysisError
        A picture of an unknown kind.
    OSError
        A file cannot be written.
    """
    from hpcpipe.analyze.describe import title
    from hpcpipe.analyze.pictures import Subject, draw_picture, measure, split_name

    named = [split_name(text) for text in wanted.pictures]
    subject = None
    if wanted.page or any(name != "gantt" for name, _ in named):
        subject = Subject(run, report, measure(run, steps), title(run, *report.steps))
    said = []
    for name, path in named:
        tell(f"drawing {path}")
        draw_picture(run, name, path, subject, steps)
        said.append(f"picture {path}")
    if wanted.page and subject:
        from hpcpipe.analyze.html import write_page

        tell(f"writing {wanted.page}")
        write_page(wanted.page, subject, steps)
        said.append(f"page {wanted.page}: open it in a browser")
    if wanted.perfetto:
        from hpcpipe.analyze.export import write_trace

        tell(f"writing {wanted.perfetto}")
        write_trace(run, wanted.perfetto, steps)
        said.append(f"trace {wanted.perfetto}: open it at ui.perfetto.dev or in chrome://tracing")
    for folder, kind in ((wanted.parquet, "parquet"), (wanted.csv, "csv")):
        if folder:
            from hpcpipe.analyze.export import write_tables

            tell(f"writing {folder}")
            tables = write_tables(run, folder, kind, steps)
            said.append(f"tables {folder}: {', '.join(tables)}")
    return said
