"""`hpcpipe validate`: every fault of a job file at once, for people or as one JSON document."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from hpcpipe.cli.terminal import say, suggest
from hpcpipe.exit_code import ExitCode

EXAMPLES = """\b
Examples:
  hpcpipe validate jobs/quickstart.toml
  hpcpipe validate job.toml --set parallel.pipeline=8 --ranks 16 --json
"""


@click.command(epilog=EXAMPLES)
@click.argument("job_file", metavar="JOB.toml", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="TABLE.KEY=VALUE", help="Change one value; repeatable.")
@click.option("-n", "--ranks", type=click.IntRange(min=1), help="Check also that the job wants this many ranks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def validate(job_file: Path, overrides: tuple[str, ...], ranks: int | None, as_json: bool) -> None:
    """Check JOB.toml and report every fault at once, each with its line and column."""
    from hpcpipe.job import JobError, load_job

    try:
        job = load_job(job_file, overrides, ranks=ranks)
    except JobError as error:
        if as_json:
            _print_json([fault.to_json() for fault in error.faults])
        else:
            from hpcpipe.cli.faults import print_faults

            print_faults(error.faults)
        sys.exit(ExitCode.INPUT)
    if as_json:
        _print_json([], [warning.to_json() for warning in job.warnings])
    else:
        from hpcpipe.cli.faults import print_warnings

        print_warnings(job.warnings)
        mesh = job.parallel
        sizes = f"pipeline {mesh.pipeline} x data {mesh.data} x tensor {mesh.tensor}"
        say(
            f"{job_file}: valid; {mesh.ranks} {'rank' if mesh.ranks == 1 else 'ranks'} ({sizes}), {job.run.steps} steps"
        )
        suggest("to train it", "run", job_file, overrides=overrides)
        own = [table for table, kind in (("model", job.model.kind), ("data", job.data.kind)) if ":" in kind]
        if own:
            say(
                f"what the function of [{'] and ['.join(own)}] returns is looked at when the run starts, or now "
                "with `hpcpipe run --dry-run`"
            )


def _print_json(faults: list[dict[str, str | int]], warnings: Sequence[dict[str, str | int]] = ()) -> None:
    import json

    head = {"format": "hpcpipe-validate", "schema_version": "1.0.0", "ok": not faults}
    document = head | {"faults": faults, "warnings": list(warnings)}
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))
