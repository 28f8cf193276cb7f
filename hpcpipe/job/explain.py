"""Put what the validation library found into the words of a job file's user: what was got, what is wanted, an example.

It must not know where things are written (document.py) nor what several values must satisfy together (checks.py).
"""

from collections.abc import Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from hpcpipe.job.faults import Problem
from hpcpipe.job.schema import TABLES, VARIANTS
from hpcpipe.job.section import Section
from hpcpipe.job.words import describe, listing, nearest, show

WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing_size": "a whole number of at most 64 bits",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "is_instance_of": "a text in quotes",
    "path_type": "a text in quotes",
    "is_instance": "a text in quotes",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least {}"),
    "greater_than": ("gt", "above {}"),
    "less_than_equal": ("le", "at most {}"),
    "less_than": ("lt", "below {}"),
}


def example_of(name: str, field: FieldInfo) -> str:
    """Return a line of TOML that gives the key a good value."""
    return f"{name} = {show(example_value(field))}"


def example_value(field: FieldInfo) -> Any:
    """Return a good value of the key: its example where the schema gives one, else its default."""
    value = field.examples[0] if field.examples else field.default
    assert value is not PydanticUndefined, "every required key of the schema has an example"
    return value


def explain_value(table: str, section: type[Section], error: ErrorDetails) -> Problem:
    """Return what is wrong with one value of a section."""
    name = str(error["loc"][0])
    field, value, kind, context = section.model_fields[name], error["input"], error["type"], error.get("ctx", {})
    example = f"for example {example_of(name, field)}"
    path: tuple[str | int, ...] = (table, name)
    if kind == "job_value":
        index = "".join(f"[{i}]" for i in context["index"])
        return Problem((*path, *context["index"]), f"{name}{index} {context['message']}", context["hint"])
    if kind == "literal_error":
        known = [str(word) for word in get_args(field.annotation)]
        near = nearest(value, known) if isinstance(value, str) else None
        quoted = listing([show(word) for word in known], "or")
        if isinstance(value, str):
            hint = (
                f"did you mean {show(near)}? it must be {quoted}" if near and len(known) > 1 else f"it must be {quoted}"
            )
            return Problem(path, f"{name} = {show(value)} is not known", hint)
        return Problem(path, f"{name} must be {quoted}, got {describe(value)}", example)
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return Problem(
            path,
            f"{name} must be {words.format(f'{context[bound]:g}')}, got {show(value)}",
            f"{example} ({field.description})",
        )
    if kind in WANTED:
        return Problem(
            path, f"{name} must be {WANTED[kind]}, got {describe(value)}", _unquoted(name, value, kind) or example
        )
    return Problem(path, f"{name} = {show(value)}: {error['msg'][0].lower()}{error['msg'][1:]}", example)


def missing_key(table: str, section: type[Section], name: str) -> Problem:
    """Return the problem of a key that has no default and is not there."""
    field = section.model_fields[name]
    return Problem(
        (table,), f"[{table}] needs the key {name}: {field.description}", f"add {example_of(name, field)}", at_key=True
    )


def missing_table(table: str) -> Problem:
    """Return the problem of a required table that is not there."""
    fields = TABLES[table].model_fields
    lines = [example_of(name, field) for name, field in fields.items() if field.is_required() and name not in DERIVED]
    return Problem((), f"the table [{table}] is missing", f"add [{table}] with {listing(lines)}")


DERIVED = ("seq_len", "name", "kv_heads", "head_dim")
"""Required keys whose default comes from elsewhere, so that users need not write them."""


def unknown_key(table: str, section: type[Section], name: str, value: object) -> Problem:
    """Return the problem of a key that the table does not have."""
    known = list(section.model_fields)
    near = nearest(name, known)
    home = [f"[{other}]" for other, fields in TABLES.items() if name in fields.model_fields and other != table]
    if near and near.replace("_", "") == name.lower().replace("-", "").replace("_", ""):
        home = []
    kinds = [kind for kind, other in VARIANTS.get(table, {}).items() if name in other.model_fields]
    if kinds:
        hint = f"{name} goes with kind = {listing([show(kind) for kind in kinds], 'or')}"
    elif home:
        hint = f"{name} belongs in {listing(home, 'or')}"
    elif near:
        hint = f"did you mean {near}?"
    else:
        hint = f"known keys: {', '.join(known)}"
    what = "table" if isinstance(value, Mapping) else "key"
    return Problem((table, name), f"unknown {what} {name} in [{table}]", hint, at_key=True)


def unknown_table(name: str, value: object) -> Problem:
    """Return the problem of a table, or of a key outside all tables, that the schema does not have."""
    if not isinstance(value, Mapping) and not (isinstance(value, list) and value and isinstance(value[0], dict)):
        home = [f"[{table}]" for table, section in TABLES.items() if name in section.model_fields]
        near = nearest(name, [key for section in TABLES.values() for key in section.model_fields])
        if home:
            hint = f"write it under {listing(home, 'or')}"
        elif near:
            hint = f"every key stands in a table; did you mean {near} in " + listing(
                [f"[{table}]" for table, section in TABLES.items() if near in section.model_fields], "or"
            )
        else:
            hint = f"every key stands in a table: {', '.join(f'[{table}]' for table in TABLES)}"
        return Problem((name,), f"the key {name} stands outside all tables", hint, at_key=True)
    near = nearest(name, TABLES)
    hint = f"did you mean [{near}]?" if near else f"known tables: {', '.join(f'[{table}]' for table in TABLES)}"
    return Problem((name,), f"unknown table [{name}]", hint, at_key=True)


def not_a_table(table: str, value: object) -> Problem:
    """Return the problem of a table's name used for something else."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return Problem(
            (table,), f"[{table}] is one table, got a list of tables", f"write [{table}], not [[{table}]]", at_key=True
        )
    return Problem(
        (table,),
        f"{table} must be a table, got {describe(value)}",
        f"write [{table}] and its keys below it",
        at_key=True,
    )


def _unquoted(name: str, value: object, kind: str) -> str:
    """Return the cure of a number in quotes, of a whole number with a point, or of a text without quotes."""
    if isinstance(value, str):
        bare = value.strip().lower()
        if kind == "bool_type" and bare in ("true", "false"):
            return f"write it without quotes: {name} = {bare}"
        if (
            kind.startswith(("int", "float"))
            and _is_number(bare)
            and (kind.startswith("float") or bare.lstrip("+-").isdecimal())
        ):
            return f"write it without quotes: {name} = {bare}"
    if kind.startswith("int") and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f"write {name} = {int(value)}"
    if kind in ("string_type", "path_type") and isinstance(value, int | float):
        return f"write it in quotes: {name} = {show(show(value))}"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
