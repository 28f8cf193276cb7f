"""The reference of the job file, made from the schema that checks it: every table, key, default and allowed value.

Keys that take several kinds of values are described in the words of their own validators.
"""

import re
from datetime import date
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticUndefined

from hpcpipe.job.injected import COMPUTE, NETWORK
from hpcpipe.job.schema import TABLES, VARIANTS, Job
from hpcpipe.job.section import Section
from hpcpipe.job.values import LARGEST
from hpcpipe.job.words import show

TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
BOUNDS = {"minimum": "from {}", "exclusiveMinimum": "above {}", "maximum": "to {}", "exclusiveMaximum": "below {}"}
DERIVED = re.compile(r" \(default: ([^)]*)\)")
HEAD = """\
# The job file

Made from the schema that `hpcpipe validate` checks by; version {version}. Tables may be left out, but for `[model]` and
`[data]`; unknown keys are errors, with the nearest known key named. `--set table.key=value` changes one value for one
run. Paths are relative to the job file's folder, but for `run_dir`, which starts at the current one;
`package:NAME/PATH` is a file of an installed Python package.
"""


NOTHING = date(2000, 1, 1)
"""A value that no key takes, so that its validator says what it wants."""


def page(version: str) -> str:
    """Return the page as Markdown."""
    parts = [HEAD.format(version=version)]
    for table, section in TABLES.items():
        need = " (required)" if table in Job.REQUIRED else ""
        parts.append(f"## `[{table}]`{need}\n")
        kinds = _kinds(table)
        if not kinds:
            parts.append(_section(section))
        for names, each in kinds:
            title = " or ".join(show(name) for name in names)
            anchor = f"{table}-{names[0].replace(':', '-')}"
            parts.append(f"### `[{table}] kind = {title}` {{ #{anchor} }}\n")
            parts.append(_section(each))
        if table == "variability":
            for key, models in (("compute", COMPUTE), ("network", NETWORK)):
                parts.append(f"### Models of `{key}`\n")
                parts.append(_models(models))
    return "\n".join(parts)


def _kinds(table: str) -> list[tuple[list[str], type[Section]]]:
    """Return the sections of a table by the kinds that have them."""
    found: dict[type[Section], list[str]] = {}
    for name, section in VARIANTS.get(table, {}).items():
        found.setdefault(section, []).append(name)
    return [(names, section) for section, names in found.items()]


def _section(section: type[Section]) -> str:
    """Return what a section is for and a table of its keys."""
    said = _first_paragraph(section).partition(": ")[2] if section.__doc__ else ""
    lines = [
        f"{said[:1].upper()}{said[1:]}\n" if said else "",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
    ]
    properties = section.model_json_schema()["properties"]
    keys = [(name, field) for name, field in section.model_fields.items() if name != "kind"]
    for name, field in keys:
        meaning, derived = _cell(field.description or ""), ""
        if match := DERIVED.search(meaning):
            meaning, derived = meaning.replace(match[0], ""), match[1]
        default = derived or "required" if field.default is PydanticUndefined else f"`{_toml(field.default)}`"
        lines.append(f"| `{name}` | {_value(section, name, properties[name])} | {default} | {meaning} |")
    return "\n".join(lines if keys else [*lines[:1], "It has no other keys."]) + "\n"


def _models(models: dict[str, type[Section]]) -> str:
    lines = ["| model | parameters | effect |", "|---|---|---|"]
    for name, section in models.items():
        fields = [
            f"`{key} = {_toml(field.default)}`" if field.default is not PydanticUndefined else f"`{key}`"
            for key, field in section.model_fields.items()
            if key != "model"
        ]
        lines.append(f"| `{name}` | {', '.join(fields)} | {_cell(_first_paragraph(section))} |")
    return "\n".join(lines) + "\n"


def _value(section: type[Section], name: str, schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{show(each)}`" for each in schema["enum"])
    if schema.get("type") in TYPES:
        limits = [
            words.format(f"{schema[key]:g}")
            for key, words in BOUNDS.items()
            if key in schema and abs(schema[key]) < LARGEST
        ]
        return " ".join([TYPES[schema["type"]], *limits])
    if schema.get("type") == "array":
        return f"list of {TYPES[schema['items']['type']]}s"
    if schema.get("type") == "object":
        return "table"
    return _cell(_wanted(section, name))


def _wanted(section: type[Section], name: str) -> str:
    """Return what a key's own validator says that it wants."""
    try:
        section.model_validate({name: NOTHING})
    except ValidationError as error:
        for each in error.errors():
            if each["loc"] == (name,) and each["type"] == "job_value":
                message = each["ctx"]["message"].removeprefix("must be ").rsplit(", got", 1)[0]
                hint = each["ctx"]["hint"].removeprefix("known are ")
                return hint if "known" in message else message
    raise AssertionError(f"{section.__name__}.{name} does not say what it takes")


def _first_paragraph(section: type[Section]) -> str:
    text = (section.__doc__ or "").strip().split("\n\n", 1)[0]
    return " ".join(text.split())


def _toml(value: Any) -> str:
    if isinstance(value, Section):
        value = value.model_dump()
    if isinstance(value, dict):
        inside = ", ".join(f"{key} = {_toml(each)}" for key, each in value.items())
        return "{ " + inside + " }" if inside else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return show(value if isinstance(value, bool | int | float | str) else str(value))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
