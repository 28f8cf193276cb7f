"""A checked job with another schedule: for asking what a recorded run would have cost, where no file is at hand.

It checks what the changed settings could break; the job's data and device are taken as they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcpipe.job import checks, schedule_checks, vision_checks
from hpcpipe.job.overrides import parse_overrides
from hpcpipe.job.schema import Job

_CHECKED = ("schedule", "parallel", "batch", "model")


def with_settings(job: Job, settings: Sequence[str]) -> Job:
    """Return the job with some `table.key=value` changed, typed as in TOML.

    Raises
    ------
    ValueError
        A setting is wrong, or does not go with the rest of the job; a sentence a line, with the way out.
    """
    overrides, faults = parse_overrides(settings)
    if faults:
        raise ValueError("\n".join(f"{fault.message}: {fault.hint}" for fault in faults))
    tables = job.model_dump(by_alias=True)
    for override in overrides:
        tables[override.table][override.key] = override.value
    try:
        changed = Job.model_validate(tables)
    except ValidationError as error:
        raise ValueError("\n".join(_sentence(each) for each in error.errors())) from None
    try:
        changed.schedule.read_table(Path())
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    problems = [
        problem
        for check in (*checks.CHECKS, *vision_checks.CHECKS, *schedule_checks.CHECKS)
        if all(path[0] in _CHECKED for path in check.needs) and check.concerns(changed)
        for problem in check.rule(changed, None)
    ]
    if problems:
        raise ValueError("\n".join(f"{problem.message}: {problem.hint}" for problem in problems))
    return changed


def _sentence(error: Any) -> str:
    hint = error.get("ctx", {}).get("hint", "")
    said = f"{'.'.join(map(str, error['loc']))} {error['msg']}"
    return f"{said}: {hint}" if hint else said
