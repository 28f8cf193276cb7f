"""`hpcpipe bench`: run a benchmark that the documentation quotes and print its table."""

import sys
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcpipe.bench import BENCHES
from hpcpipe.bench.ranks import CannotRunError
from hpcpipe.cli.output_file import Picture

if TYPE_CHECKING:
    from hpcpipe.bench.table import BenchTable, Cell, Column

_OWN = "the benchmark's own"
_EXAMPLES = """\b
Examples:
  hpcpipe bench paper-adagrouper
  hpcpipe bench pipeline --quick --json > pipeline.json
  hpcpipe bench dataparallel --rate 1gbit --model gpt-2
  hpcpipe bench preempted --quick --seed 2 --plot preempted.png

"""
_UNITS = {each: each for each in ("ms", "%", "kB", "MB", "GB/s")} | {"us": "µs"}
"""What is shown behind a heading; what is counted in, say micro-batches, the notes say."""
_SINGULAR = {"rates": "rate", "models": "model"}
_LIST = "\b\nBenchmarks:\n" + "\n".join(f"  {name:<18}{line}" for name, (_, line) in BENCHES.items())


@click.command(epilog=_EXAMPLES + _LIST)
@click.argument("name", type=click.Choice(list(BENCHES)), metavar="NAME")
@click.option("--steps", type=click.IntRange(min=1), help="Steps of each setting.", show_default=_OWN)
@click.option("--seconds", type=click.IntRange(min=1), help="Seconds of a phase (preempted).", show_default=_OWN)
@click.option("--ranks", type=click.IntRange(min=1), help="MPI ranks to start.", show_default=_OWN)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="RATE",
    help="A link's rate, 1gbit or 10gbit (dataparallel); repeatable.",
    show_default="both",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="A model, 12-layers or gpt-2 (dataparallel); repeatable.",
    show_default="both",
)
@click.option("--quick", is_flag=True, help="Fewer rows, for benchmarks that have many.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of what is drawn.", show_default=_OWN)
@click.option("--plot", type=Picture(), metavar="FILE", help="Draw the course of it too, .png or .svg (preempted).")
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
    """Run the benchmark NAME and print its table.

    An option that NAME does not take is refused, and those that it takes are named.
    """
    from rich.progress import Progress

    from hpcpipe.cli.terminal import make_console, refuse

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
            taken = " ".join(f"--{_SINGULAR.get(each, each)}" for each, _ in given if each in signature(run).parameters)
            raise click.UsageError(
                f"the benchmark {name} does not take --{_SINGULAR.get(key, key)}; it takes {taken or 'only --json'}"
            )
    with Progress(console=make_console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(name, total=None)
        try:
            table = run(**options, progress=lambda: bar.advance(task))
        except CannotRunError as error:
            refuse(str(error), error.code)
    if table is None:  # a rank that is not the first
        return
    if as_json:
        import json

        click.echo(json.dumps(table.to_json(), indent=2, ensure_ascii=False))
    else:
        _print(table)


def _print(table: "BenchTable") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from hpcpipe.cli.terminal import make_console, print_notes, print_table

    console = make_console()
    console.print(Text(table.title, style="bold"))
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    words = [
        all(isinstance(row[index], str) for row in table.rows) and bool(table.rows)
        for index in range(len(table.columns))
    ]
    for column, is_word in zip(table.columns, words, strict=True):
        shown.add_column(_heading(column), justify="left" if is_word else "right", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(_show(cell, column) for cell, column in zip(row, table.columns, strict=True)))
    print_table(console, shown, keys=table.keys)
    print_notes(console, table.notes)


def _heading(column: "Column") -> str:
    unit = _UNITS.get(column.unit, "")
    return f"{column.name} {unit}" if unit and unit not in column.name.split() else column.name


def _show(cell: "Cell", column: "Column") -> str:
    if cell is None:
        return ""
    return f"{cell:.{column.digits}f}" if isinstance(cell, float) else str(cell)
