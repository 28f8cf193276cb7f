"""`hpcpipe analyze`: where the time of one run went, or of several side by side, as text, JSON and pictures."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.cli.analyze_files import Wanted, write_files
from hpcpipe.cli.follow import follow
from hpcpipe.cli.output_file import NamedPicture, OutputFile
from hpcpipe.cli.terminal import refuse, suggest, working
from hpcpipe.cli.what_if import WHAT_IF_HELP, answer, print_answers

if TYPE_CHECKING:
    from hpcpipe.analyze import Report
    from hpcpipe.analyze.what_if import Question, WhatIf


EXAMPLES = """\b
Examples:
  hpcpipe analyze runs/quickstart/latest
  hpcpipe analyze runs/quickstart/latest --html page.html
  hpcpipe analyze runs/quickstart/latest --step 10:12 --plot steps.png
  hpcpipe analyze runs/quickstart/latest --plot classes:where.svg
  hpcpipe analyze runs/fixed/latest runs/ready/latest
  hpcpipe analyze runs/quickstart/latest --what-if 1f1b,fixed
  hpcpipe analyze runs/quickstart/latest --what-if zb-h1,2x,ideal-network
  hpcpipe analyze runs/quickstart/latest --json | jq .efficiency
"""


class StepRange(click.ParamType):
    """`A:B` (both included), `A:`, `:B` or `A`."""

    name = "A:B"

    def convert(
        self, value: str | tuple[int | None, int | None], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int | None, int | None]:
        """Return the first and the last step, None where a side is open."""
        if isinstance(value, tuple):
            return value
        first, colon, last = value.partition(":")
        sides = [side.strip() for side in ((first, last) if colon else (first, first))]
        if not all(side == "" or side.isdecimal() for side in sides) or not any(sides):
            self.fail(f"{value!r}: give the first and the last step as in 10:12, 10:, :12 or 10", param, ctx)
        low, high = (int(side) if side else None for side in sides)
        if low is not None and high is not None and low > high:
            self.fail(f"{value!r}: the first step is after the last", param, ctx)
        return low, high


FILE = OutputFile()
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command(epilog=EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot", "pictures", multiple=True, type=NamedPicture(), metavar="[NAME:]FILE",
    help="Draw a picture, .png or .svg; repeatable. NAME: gantt (default), classes, steps, latency, ready, "
    "durations.",
)  # fmt: skip
@click.option("--what-if", "asked", multiple=True, metavar="WHAT", help=WHAT_IF_HELP)
@click.option("--html", "page", metavar="FILE", type=FILE, help="Write one page with every picture; zoomable, offline.")
@click.option(
    "--perfetto", metavar="FILE", type=FILE, help="Write a Chrome trace (.json, .json.gz) for ui.perfetto.dev."
)
@click.option("--parquet", metavar="DIR", type=FOLDER, help="Write the tables as Parquet files, for data frames.")
@click.option("--csv", metavar="DIR", type=FOLDER, help="Write the tables as CSV files.")
@click.option(
    "--peak-tflops", type=click.FloatRange(min=0, min_open=True), metavar="X",
    help="Most TFLOP/s of one rank's device; adds the model FLOPs utilisation.",
)  # fmt: skip
@click.option("--follow", "following", is_flag=True, help="Look at a running job until it ends, every 2 s.")
@click.option(
    "--step", "steps", type=StepRange(), help="Only these steps, first and last included.", show_default="all"
)
def analyze(
    runs: tuple[Path, ...],
    as_json: bool,
    pictures: tuple[str, ...],
    asked: tuple[str, ...],
    page: Path | None,
    perfetto: Path | None,
    parquet: Path | None,
    csv: Path | None,
    peak_tflops: float | None,
    following: bool,
    steps: tuple[int | None, int | None] | None,
) -> None:
    """Say where the time of a run went; RUN is a run directory, its events, one rank's file, or Chrome traces.

    Several are compared with the first: how much their steps differ, and whether that is more than the noise.
    """
    from hpcpipe.analyze import AnalysisError, summarize
    from hpcpipe.analyze.traces import open_log
    from hpcpipe.events import LogError

    if following:
        if len(runs) > 1 or as_json or asked or steps or peak_tflops or pictures or any((page, perfetto, parquet, csv)):
            raise click.UsageError("--follow shows one RUN and takes no other options")
        try:
            follow(runs[0])
        except LogError as error:
            refuse(str(error))
        return
    wanted = Wanted(pictures, page, perfetto, parquet, csv)
    if (wanted or asked) and len(runs) > 1:
        raise click.UsageError("pictures, pages, exports and --what-if are of one run; give one RUN")
    questions = _questions(asked)
    written: list[str] = []
    found: WhatIf | None = None
    try:
        with working("reading the event log" if len(runs) == 1 else "reading the event logs") as tell:
            logs = [open_log(run) for run in runs]
            reports = [summarize(log, steps, peak_tflops=peak_tflops) for log in logs]
            if wanted:
                written = write_files(logs[0], reports[0], steps, wanted, tell)
        if questions:
            found = answer(logs[0], questions, steps)
    except (LogError, AnalysisError) as error:
        refuse(str(error))
    except OSError as error:
        refuse(f"{error.filename or 'a file'}: cannot be written: {error.strerror or error}")
    if as_json:
        _print_json(reports, found)
    else:
        _print_text(reports, written, found)
        if len(runs) == 1 and not written:
            suggest("to see every picture", "analyze", runs[0], "--html", "page.html")


def _questions(asked: tuple[str, ...]) -> "list[Question]":
    if not asked:
        return []
    from hpcpipe.analyze.what_if import read_question

    try:
        return [read_question(text) for text in asked]
    except ValueError as error:
        refuse(f"--what-if {error}")


def _print_json(reports: "list[Report]", found: "WhatIf | None") -> None:
    import json

    from hpcpipe.analyze import compare, comparison_json

    document = reports[0].to_json()
    if len(reports) > 1:
        head = {key: document[key] for key in ("format", "schema_version")}
        compared = [comparison_json(compare(reports[0], report)) for report in reports[1:]]
        document = {**head, "runs": [report.to_json() for report in reports], "comparisons": compared}
    if found is not None:
        document["what_if"] = found.to_json()
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_text(reports: "list[Report]", written: list[str], found: "WhatIf | None") -> None:
    from hpcpipe.analyze import compare, render_side_by_side, render_text
    from hpcpipe.cli.terminal import make_console

    console = make_console(highlight=False)
    if len(reports) == 1:
        console.print(render_text(reports[0]))
    else:
        console.print(render_side_by_side(reports, [compare(reports[0], report) for report in reports[1:]]))
    if found is not None:
        print_answers(console, found)
    for line in written:
        console.print(line, soft_wrap=True, markup=False)
