"""`hpcpipe doctor`: does this environment fit, and if not, what to do; for people or as one JSON document."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.cluster.check import Check

COLOURS = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}

EXAMPLES = """\b
Examples:
  hpcpipe doctor
  srun -n 4 hpcpipe doctor     looks at the launcher's ranks too
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default=Path("runs"),
    metavar="DIR",
    show_default=True,
    help="Where runs will be written.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def doctor(run_dir: Path, as_json: bool) -> None:
    """Check MPI, launcher, GPUs, files and clock; say what to do."""
    from hpcpipe.cli.terminal import working
    from hpcpipe.cluster.doctor import join_launcher_world, run_checks
    from hpcpipe.cluster.environment import world

    given = world()
    joined = join_launcher_world(run_dir)
    if given is not None and given.rank != 0:
        sys.exit(ExitCode.ENVIRONMENT if joined is None or joined.get("size") != given.size else 0)
    with working("checking: libraries, MPI, ranks that meet, files"):
        checks = run_checks(run_dir, joined=joined)
    ok = all(check.status != "fail" for check in checks)
    if as_json:
        _print_json(checks, ok=ok, links=(joined or {}).get("links", []))
    else:
        _print_report(checks)
    sys.exit(0 if ok else ExitCode.ENVIRONMENT)


def _print_json(checks: "list[Check]", *, ok: bool, links: list[Any]) -> None:
    import json

    entries = [check.to_json() for check in checks]
    document = {"format": "hpcpipe-doctor", "schema_version": "1.1.0", "ok": ok, "checks": entries, "links": links}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def _print_report(checks: "list[Check]") -> None:
    from rich.table import Table
    from rich.text import Text

    from hpcpipe.cli.terminal import make_console, say

    console = make_console(highlight=False)
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        detail = Text(check.detail)
        if check.hint:
            detail.append(f"\n→ {check.hint}", style="cyan" if check.status in ("warn", "fail") else "dim")
        table.add_row(Text(check.status.upper(), style=COLOURS[check.status]), check.name, detail)
    console.print(table)
    counts = {status: sum(check.status == status for check in checks) for status in COLOURS}
    words = {"pass": "passed", "warn": "to look at", "fail": "failed", "skip": "left out"}
    summary = ", ".join(f"{number} {words[status]}" for status, number in counts.items() if number)
    console.print(Text(f"\n{summary}", style="bold red" if counts["fail"] else "bold"))
    if counts["fail"]:
        say("do what the arrows say, then call hpcpipe doctor again in the same way")
    else:
        say("to train: hpcpipe run JOB.toml")
