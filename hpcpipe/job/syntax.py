"""Turn TOML text into values; a text that is not TOML gets its place and, for the usual slips, the cure.

The reading itself is tomllib's; it must not know the schema.
"""

import re
import tomllib
from typing import Any

from hpcpipe.job.faults import Fault, JobError
from hpcpipe.job.source import Source

PLACE = re.compile(
    r"^(?P<message>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$", re.DOTALL
)
REPEATED = ("Cannot overwrite a value", "Cannot declare", "Cannot mutate", "Duplicate inline table key")


def parse(source: Source) -> dict[str, Any]:
    """Return the values of the text.

    Raises
    ------
    JobError
        Not TOML, with line and column; every repeated key where that is what is wrong.
    """
    try:
        return tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        raise JobError(_faults(source, str(error))) from None
    except RecursionError:
        said, hint = "lists or tables are nested too deeply", "a job needs no deep nesting"
        raise JobError([Fault(source.name, 0, 0, "", said, hint)]) from None
    except ValueError:  # Python refuses whole numbers of thousands of digits
        raise JobError([_endless_number(source)]) from None


def _endless_number(source: Source) -> Fault:
    match = re.search(r"\d[\d_]{4000,}", source.text)
    start = match.start() if match else 0
    line, column = source.text.count("\n", 0, start) + 1, start - source.text.rfind("\n", 0, start)
    said, hint = "a number has thousands of digits", "write a whole number of at most 64 bits"
    return Fault(source.name, line, column, "", said, hint, source=source.line(line))


def _faults(source: Source, text: str) -> list[Fault]:
    match = PLACE.match(text)
    message = match["message"] if match else text
    if message.startswith(REPEATED):
        repeats = _repeats(source)
        if repeats:
            return repeats
    line, column, said, hint = _first(source, message, match)
    return [Fault(source.name, line, column, "", f"not valid TOML: {said}", hint, source=source.line(line))]


def explain_first(source: Source) -> tuple[int, str, str]:
    """Return column, message and cure of the first thing that is wrong with a one-line text that is not TOML."""
    try:
        tomllib.loads(source.text)
    except tomllib.TOMLDecodeError as error:
        match = PLACE.match(str(error))
        _, column, said, hint = _first(source, match["message"] if match else str(error), match)
        return column, said, hint
    except (RecursionError, ValueError):
        pass
    return 1, "cannot be read as TOML", "write a plain value"


def _first(source: Source, message: str, match: re.Match[str] | None) -> tuple[int, int, str, str]:
    line, column = _end(source)
    if match and match["line"]:
        line, column = int(match["line"]), int(match["column"])
    if column > len(source.line(line)) and not source.line(line).strip() and line > 1:
        line, column = _end(source, line)
    if message.startswith("Unescaped"):
        column = source.line(line).rfind("\\", 0, column - 1) + 1
    said, hint = _explain(message, source.line(line), column)
    return line, min(column, len(source.line(line)) + 1), said, hint


def _repeats(source: Source) -> list[Fault]:
    from hpcpipe.job.positions import Positions

    faults = []
    for repeat in Positions(source.text).repeats:
        name = ".".join(map(str, repeat.path))
        what = f"table [{name}]" if repeat.is_table else f"key {name}"
        faults.append(
            Fault(
                source.name,
                repeat.again.line,
                repeat.again.column,
                name,
                f"the {what} is written twice; the first is on line {repeat.first.line}",
                "merge the two tables" if repeat.is_table else "remove one of the two",
                source=source.line(repeat.again.line),
                length=repeat.again.length,
            )
        )
    return faults


def _end(source: Source, before: int | None = None) -> tuple[int, int]:
    """Return the place after the last character that is not blank."""
    lines = source.lines[: before if before is not None else len(source.lines)]
    for number in range(len(lines), 0, -1):
        if lines[number - 1].strip():
            return number, len(lines[number - 1].rstrip()) + 1
    return 1, 1


def _explain(message: str, line: str, column: int) -> tuple[str, str]:
    """Return tomllib's message in plainer words and the cure of the slip, as far as one is recognised."""
    before, rest = line[: column - 1], line[column - 1 :].strip()
    value = line.partition("=")[2].split("#")[0].strip()
    key = line.partition("=")[0].strip()
    if message.startswith("Expected '=' after a key"):
        if re.match(r"\s*[\w.-]+\s*:", line):
            return 'expected "=" after a key', 'TOML writes key = value, with "=" and not ":"'
        return 'expected "=" after a key', "a line is key = value, a [table] or a # comment"
    if message.startswith("Expected ']' at the end of a table"):
        return 'expected "]" at the end of a table name', "write the name of a table as [name]"
    if message.startswith(("Unclosed array", "Unclosed inline table")):
        bracket = "]" if "array" in message else "}"
        return message[0].lower() + message[1:], f'a "{bracket}" or a comma is missing'
    if message.startswith(("Unterminated", 'Expected "\'"')) or (
        message.startswith("Illegal character") and before.count('"') % 2
    ):
        return "a text is not closed on its line", "a closing quote is missing"
    if message.startswith("Unescaped '\\' in a string"):
        return "a backslash in a text", "write paths with / or in single quotes: 'C:\\data\\corpus.txt'"
    if message.startswith("Expected newline or end of document"):
        if rest.startswith("//"):
            return "expected the end of the line", "comments start with #"
        if re.match(r"0\d", value):
            return "a number starts with 0", f"write {key} = {value.lstrip('0') or '0'}"
        if re.fullmatch(r"\d{1,3}(,\d{3})+", value):
            return "expected the end of the line", f"write {key} = {value.replace(',', '_')}"
        if re.match(r"-?\d+\.(e|$|\s)", value):
            return "a number ends with a point", f"write digits on both sides: {key} = 1.0"
        return "expected the end of the line", "one key = value a line; texts are in quotes"
    if message.startswith("Invalid value"):
        return "invalid value" if rest else "a value is missing", _value_hint(key, value)
    if message.startswith("Invalid statement"):
        if line.lstrip().startswith("//"):
            return "invalid statement", "comments start with #"
        return "invalid statement", "a line is key = value, a [table] or a # comment"
    return message[0].lower() + message[1:], "a line is key = value, a [table] or a # comment; texts are in quotes"


def _value_hint(key: str, value: str) -> str:
    if not value:
        return f"write a value after {key} =" if key else "write a value"
    if value.lower() in ("true", "false"):
        return f"write {key} = {value.lower()}"
    if value.lower() in ("none", "null", "nil"):
        return "TOML has no null; leave the key out to get its default"
    if re.match(r"[+-]?\.\d", value):
        return f"write {key} = {value.replace('.', '0.', 1)}"
    if re.match(r"[\w./~-]", value) and "[" not in value:
        return f'texts are in quotes: {key} = "{value}"'
    return "texts are in quotes, lists in [ ]"
