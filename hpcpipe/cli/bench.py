"""`hpcpipe bench`: run a benchmark that the documentation quotes and print its table."""

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.bench import BENCHES
from hpcpipe.bench.ranks import CannotRunError

if TYPE_CHECKING:
    from hpcpipe.bench.table import BenchTable, Cell, Column

_WIDE = 160
_EXAMPLES = """\b
Examples:
  hpcpipe bench paper-adagrouper
  hpcpipe bench pipeline --quick --json > pipeline.json
  hpcpipe bench dataparallel --rate 1gbit --model gpt-2
  hpcpipe bench preempted --quick --seed 2 --plot preempted.png

"""
_LIST = "\b\nBenchmarks:\n" + "\n".join(f"  {name:<18}{line}" for name, (_, line) in BENCHES.items())


@click.command(epilog=_EXAMPLES + _LIST)
@click.argument("name", type=click.Choice(list(BENCHES)), metavar="NAME")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of each setting (default: the benchmark's own).")
@click.option("--seconds", type=click.IntRange(min=1), help="Seconds of a phase, for benchmarks that go by time.")
@click.option("--ranks", type=click.IntRange(min=1), help="MPI ranks to start, for benchmarks that need them.")
@click.option("--rate", "rates", multiple=True, help="dataparallel: a link's rate (1gbit, 10gbit); may be repeated.")
@click.option("--model", "models", multiple=True, help="dataparallel: a model (12-layers, gpt-2); may be repeated.")
@click.option("--quick", is_flag=True, help="Fewer rows, for benchmarks that have many.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of what is drawn, for benchmarks that draw.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Draw the course of it too (.png or .svg), for benchmarks that have one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def bench(
    name: str,
    steps: int | None,
    seconds: int | None,
    ranks: int | None,
    rates: tuple[str, ...],
    models: tuple[str, ...],
    quick: bool,
    seed: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run the benchmark NAME and print its table."""
    from rich.progress import Progress

    from hpcpipe.cli.terminal import make_console

    module, _, attribute = BENCHES[name][0].partition(":")
    run = getattr(import_module(module), attribute)
    given = (
        ("steps", steps),
        ("seconds", seconds),
        ("ranks", ranks),
        ("rates", rates or None),
        ("models", models or None),
        ("quick", quick or None),
        ("seed", seed),
        ("plot", plot),
    )
    options = {key: value for key, value in given if value is not None}
    for key in options:
        if key not in signature(run).parameters:
            option = {"rates": "rate", "models": "model"}.get(key, key)
            raise click.UsageError(f"the benchmark {name} does not take --{option}")
    with Progress(console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None)
        try:
            table = run(**options, progress=lambda: bar.advance(task))
        except CannotRunError as error:
            raise click.ClickException(str(error)) from None
    if table is None:  # a rank that is not the first
        return
    if as_json:
        import json

        click.echo(json.dumps(table.to_json(), indent=2, ensure_ascii=False))
    else:
        _print(table)


def _print(table: "BenchTable") -> None:
    from rich import box
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from hpcpipe.cli.terminal import make_console

    console = make_console()
    console.print(Text(table.title, style="bold"))
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        words = all(isinstance(row[table.columns.index(column)], str) for row in table.rows)
        shown.add_column(column.name, justify="left" if words else "right", overflow="fold", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(_show(cell, column) for cell, column in zip(row, table.columns, strict=True)))
    usual = console.width
    if not console.is_terminal:  # a file has room for every figure
        console.width = max(usual, Measurement.get(console, console.options.update_width(_WIDE), shown).maximum)
    console.print(shown)
    console.width = usual
    for note in table.notes:
        console.print(Padding(Text(f"- {note}", style="dim"), (0, 0, 0, 0)))


def _show(cell: "Cell", column: "Column") -> str:
    if cell is None:
        return ""
    return f"{cell:.{column.digits}f}" if isinstance(cell, float) else str(cell)
