"""From a path to a checked job, or to every fault at once.

Each section is validated by itself, and each rule runs where the values it needs are right, so no fault hides another.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hpcpipe.job import (
    checkpoint_checks,
    checks,
    comm_checks,
    data_checks,
    device_checks,
    explain,
    fusion_checks,
    grouping_checks,
    pretrained,
    schedule_checks,
    slurm_checks,
    tensor_checks,
    vision_checks,
)
from hpcpipe.job.datasets import DataFile, Samples
from hpcpipe.job.document import Document
from hpcpipe.job.factory import variant_of
from hpcpipe.job.faults import JobError, Problem
from hpcpipe.job.models import LanguageModel, OwnModel
from hpcpipe.job.overrides import parse_overrides
from hpcpipe.job.schema import TABLES, VARIANTS, Job, Schedule
from hpcpipe.job.section import Section
from hpcpipe.job.source import Source, read_source
from hpcpipe.job.syntax import parse
from hpcpipe.job.words import nearest


def load_job(path: Path, overrides: Sequence[str] = (), ranks: int | None = None, *, text: str | None = None) -> Job:
    """Return the checked job of a file.

    Parameters
    ----------
    overrides
        `table.key=value`, typed as in TOML; they win over the file.
    ranks
        How many ranks there are, where that is known; the job must want as many.
    text
        What is in the file, where somebody else has read it.

    Raises
    ------
    JobError
        Every fault of the file and of the overrides.
    """
    path = Path(path)
    read, faults = parse_overrides(overrides)
    try:
        source = read_source(path) if text is None else Source(str(path), text)
        document = Document(source, parse(source), read)
    except JobError as error:
        raise JobError([*error.faults, *faults]) from None
    reading = _Reading(document, path)
    job = reading.job()
    reading.check(job, ranks)
    faults += [document.fault(reading.as_written(problem)) for problem in reading.problems]
    if faults:
        raise JobError(faults)
    found = [*schedule_checks.warnings_of(job), *device_checks.warnings_of(job)]
    job.set_warnings([document.fault(reading.as_written(problem)) for problem in found])
    return job


class _Reading:
    """One pass over a document: the sections as far as they are right, and the problems met on the way."""

    def __init__(self, document: Document, path: Path) -> None:
        self.document = document
        self.path = path
        self.problems: list[Problem] = []
        self.wrong: set[tuple[str | int, ...]] = set()
        self.written: dict[str, str] = {}

    def job(self) -> Job:
        """Return the job; its wrong values, noted in `wrong`, are stood in for by examples."""
        tables = self._tables(self.document.values)
        sections: dict[str, Section] = {}
        for name in TABLES:
            values = dict(tables[name] or {})
            settled = pretrained.settle(values, self.path.parent.absolute()) if name == "model" else None
            values = values if settled is None else settled.values
            section = _variant(name, values)
            if name == "job":
                values.setdefault("name", self.path.stem)
            if tables[name] is not None and issubclass(section, DataFile):
                self._derive_length(section, sections.get("model"), values)
            if tables[name] is None:
                self.wrong |= {(name, key) for key in section.model_fields}
                sections[name] = section.model_validate(_examples(section, section.model_fields))
            elif settled is None:
                sections[name] = self._section(name, section, values)
            else:
                sections[name] = self._model(section, settled, written=tables[name] or {})
        for each in sections.values():
            if isinstance(each, Samples | OwnModel):
                each.set_folder(self.path.parent.absolute())
        self._read_table(sections["schedule"])
        job = Job.model_construct(None, run=sections.pop("job"), **sections)
        job.set_folder(self.path.parent.absolute())
        return job

    def _derive_length(self, section: type[Section], model: Section | None, values: dict[str, Any]) -> None:
        """Let sequences be as long as the model's context, where it has one."""
        if "seq_len" in values or ("model", "context") in self.wrong or "kind" not in values:
            return
        context = getattr(model, "context", None)
        if context is not None:
            values["seq_len"] = context
        elif isinstance(model, OwnModel) and not any(nearest(key, section.model_fields) == "seq_len" for key in values):
            self.problems.append(explain.missing_key("data", section, "seq_len"))

    def _model(self, section: type[Section], settled: pretrained.Settled, *, written: Mapping[str, Any]) -> Section:
        """Return the model's section, with the folder that it starts from checked as far as it is right."""
        values, fields = dict(settled.values), section.model_fields
        self.problems += settled.problems
        if settled.problems:  # what the folder would have said is missing, and not the user's to write
            absent = [name for name, field in fields.items() if field.is_required() and name not in values]
            values |= _examples(section, absent)
            self.wrong |= {("model", name) for name in ("init", *absent)}
        good = self._section("model", section, values)
        if isinstance(good, LanguageModel) and good.init:
            good.set_folder(self.path.parent.absolute())
            if not any(path[0] == "model" for path in self.wrong):
                problems = pretrained.disagreements(good, written, settled.found) or pretrained.weight_problems(good)
                self.problems += problems
                self.wrong |= {problem.path for problem in problems}
        return good

    def _read_table(self, schedule: Section) -> None:
        """Read the file of a hint that names one; without it no rule about the schedule can be checked."""
        assert isinstance(schedule, Schedule)
        where, folder = ("schedule", "hint"), self.path.parent.absolute()
        try:
            schedule.read_table(folder)
        except (OSError, ValueError) as error:
            path = schedule.table_path(folder)
            if isinstance(error, OSError):
                said = [f"{path} cannot be read: {error.strerror or error}"]
                hint = "a relative path starts at the job file's folder"
            else:
                said = [f"{path}: {line}" for line in str(error).splitlines()]
                hint = "the table has a row a stage with cells such as 0F0,0F1,0B0 (torch.distributed.pipelining's CSV)"
            self.problems += [Problem(where, sentence, hint) for sentence in said]
            self.wrong.add(where)

    def check(self, job: Job, ranks: int | None) -> None:
        """Run every rule whose values are right; a problem of a value that is a default points to a written one."""
        rules = (
            checks,
            data_checks,
            vision_checks,
            schedule_checks,
            tensor_checks,
            comm_checks,
            checkpoint_checks,
            device_checks,
            slurm_checks,
            grouping_checks,
            fusion_checks,
        )
        for check in (check for module in rules for check in module.CHECKS):
            if self.wrong & set(check.needs) or not check.concerns(job):
                continue
            for problem in check.rule(job, ranks):
                written = [path for path in (problem.path, *check.needs) if self.document.is_written(path)]
                self.problems.append(problem._replace(path=written[0] if written else problem.path))

    def as_written(self, problem: Problem) -> Problem:
        """Return the problem with its table named as the file names it."""
        if not problem.path:
            return problem
        table, *rest = problem.path
        return problem._replace(path=(self.written.get(str(table), table), *rest))

    def _tables(self, values: Mapping[str, Any]) -> dict[str, Mapping[str, Any] | None]:
        """Return the values of each table, None where none can be used; a misspelt table is read all the same."""
        found: dict[str, Mapping[str, Any] | None] = {}
        for name, value in values.items():
            if name in TABLES:
                found[name] = value if isinstance(value, Mapping) else None
                if not isinstance(value, Mapping):
                    self.problems.append(explain.not_a_table(name, value))
                continue
            self.problems.append(explain.unknown_table(name, value))
            meant = nearest(name, TABLES)
            if isinstance(value, Mapping) and meant and meant not in values and meant not in found:
                found[meant] = value
                self.written[meant] = name
        for name in TABLES:
            if name not in found:
                missing = name in Job.REQUIRED
                found[name] = None if missing else {}
                if missing:
                    self.problems.append(explain.missing_table(name))
        return found

    def _section(self, table: str, section: type[Section], values: Mapping[str, Any]) -> Section:
        fields = section.model_fields
        unknown = [name for name in values if name not in fields]
        self.problems += [explain.unknown_key(table, section, name, values[name]) for name in unknown]
        meant = {nearest(name, fields) for name in unknown}
        known = {name: value for name, value in values.items() if name in fields}
        missing = [name for name, field in fields.items() if field.is_required() and name not in known]
        said = meant | set(explain.DERIVED)
        self.problems += [explain.missing_key(table, section, name) for name in missing if name not in said]
        faulty = set(missing) | {name for name in meant if name and name not in known}
        usable = known | _examples(section, missing)
        try:
            good = section.model_validate(usable)
        except ValidationError as error:
            details = error.errors(include_url=False)
            self.problems += [explain.explain_value(table, section, detail) for detail in details]
            bad = {str(detail["loc"][0]) for detail in details}
            faulty |= bad
            good = section.model_validate(usable | _examples(section, bad))
        self.wrong |= {(table, name) for name in faulty}
        return good


def _variant(table: str, values: Mapping[str, Any]) -> type[Section]:
    """Return the section of the table's kind; the usual one where the kind is missing or wrong, which is said later."""
    kind = values.get("kind")
    return VARIANTS.get(table, {}).get(variant_of(kind), TABLES[table]) if isinstance(kind, str) else TABLES[table]


def _examples(section: type[Section], names: Iterable[str]) -> dict[str, Any]:
    return {name: explain.example_value(section.model_fields[name]) for name in names}
