"""Values of a job file that are tables of several kinds, such as `{ model = "lognormal", sigma = 0.3 }`."""

from collections.abc import Mapping
from typing import Any

from pydantic import PlainSerializer, PlainValidator, ValidationError

from hpcpipe.job.section import Section
from hpcpipe.job.values import wrong
from hpcpipe.job.words import describe, listing, nearest, show

AS_TABLE = PlainSerializer(lambda section: section.model_dump(), return_type=dict[str, Any])


def one_of(sections: Mapping[str, type[Section]], key: str, example: str) -> PlainValidator:
    """Return a validator that takes a table and finds its section by what `key` names."""
    known = listing([show(name) for name in sections], "or")

    def validate(value: Any) -> Any:
        if isinstance(value, tuple(sections.values())):
            return value
        if not isinstance(value, dict):
            raise wrong(f"must be a table with a {key}, got {describe(value)}", f"for example {example}")
        name = value.get(key)
        if not isinstance(name, str) or name not in sections:
            near = nearest(name, sections) if isinstance(name, str) else None
            meant = f"did you mean {show(near)}? " if near else ""
            got = f"has the unknown {key} {show(name)}" if name is not None else f"needs a {key}"
            raise wrong(got, f"{meant}known are {known}; for example {example}")
        section = sections[name]
        try:
            return section.model_validate(value)
        except ValidationError as error:
            said = [_say(detail["loc"], detail["type"], detail["msg"]) for detail in error.errors(include_url=False)]
            others = [other for other in section.model_fields if other != key]
            has = f"{show(name)} has {listing(others)}" if others else f"{show(name)} has no other key"
            raise wrong(f"is wrong: {'; '.join(said)}", has) from None

    return PlainValidator(validate)


def _say(where: tuple[int | str, ...], kind: str, message: str) -> str:
    key = str(where[0])
    if kind == "extra_forbidden":
        return f"unknown key {key}"
    return f"{key} {message.replace('Input should', 'must')}"
