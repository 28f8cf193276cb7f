"""`hpcpipe analyze`: where the time of one run went, or of several side by side, as text, JSON and pictures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.analyze import Report


EXAMPLES = """\b
Examples:
  hpcpipe analyze runs/quickstart/latest
  hpcpipe analyze runs/quickstart/latest --step 10:12 --plot steps.png --plot steps.svg
  hpcpipe analyze runs/fixed/latest runs/ready/latest
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


@click.command(epilog=EXAMPLES)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option(
    "--plot", "pictures", multiple=True, metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
    help="Draw a Gantt picture, .png or .svg; repeatable. Choose few steps with --step.",
)  # fmt: skip
@click.option(
    "--peak-tflops", type=click.FloatRange(min=0, min_open=True), metavar="X",
    help="Most TFLOP/s of one rank's device; adds the model FLOPs utilisation.",
)  # fmt: skip
@click.option("--step", "steps", type=StepRange(), help="Only these steps, first and last included.")
def analyze(
    runs: tuple[Path, ...],
    as_json: bool,
    pictures: tuple[Path, ...],
    peak_tflops: float | None,
    steps: tuple[int | None, int | None] | None,
) -> None:
    """Say where the time of a run went; RUN is a run directory, its events, or one rank's file.

    Several are compared with the first: how much their steps differ, and whether that is more than the noise.
    """
    from hpcpipe.analyze import AnalysisError, plot_gantt, summarize
    from hpcpipe.events import LogError, open_run

    if pictures and len(runs) > 1:
        raise click.UsageError("--plot draws one run; give one RUN")
    try:
        logs = [open_run(run) for run in runs]
        reports = [summarize(log, steps, peak_tflops=peak_tflops) for log in logs]
        for picture in pictures:
            plot_gantt(logs[0], picture, steps)
    except (LogError, AnalysisError) as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename or 'picture'}: cannot be written: {error.strerror or error}")
    if as_json:
        _print_json(reports)
    else:
        _print_text(reports, pictures)


def _refuse(message: str) -> None:
    click.echo("\n".join(f"hpcpipe analyze: {line}" for line in message.splitlines()), err=True)
    sys.exit(ExitCode.INPUT)


def _print_json(reports: "list[Report]") -> None:
    import json

    from hpcpipe.analyze import compare, comparison_json

    document = reports[0].to_json()
    if len(reports) > 1:
        head = {key: document[key] for key in ("format", "schema_version")}
        compared = [comparison_json(compare(reports[0], report)) for report in reports[1:]]
        document = {**head, "runs": [report.to_json() for report in reports], "comparisons": compared}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_text(reports: "list[Report]", pictures: tuple[Path, ...]) -> None:
    from rich.console import Console

    from hpcpipe.analyze import compare, render_side_by_side, render_text

    console = Console(highlight=False)
    if len(reports) == 1:
        console.print(render_text(reports[0]))
    else:
        console.print(render_side_by_side(reports, [compare(reports[0], report) for report in reports[1:]]))
    for picture in pictures:
        console.print(f"picture {picture}", soft_wrap=True)
