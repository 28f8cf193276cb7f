"""What a rule over several values is: a small function that yields problems, and the values that it looks at.

It is left out where one of those is wrong by itself, so one cause gives one fault; it must not know any rule.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from hpcpipe.job.faults import Path, Problem
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

Rule = Callable[[Job, int | None], Iterator[Problem]]
"""(job, ranks where known) -> problems."""


class Check(NamedTuple):
    """A rule and the values it needs."""

    needs: tuple[Path, ...]
    rule: Rule

    def concerns(self, job: Job) -> bool:
        """Return whether the job has all of these keys: not every kind of a table does."""
        sections = [(job.run if table == "job" else getattr(job, str(table)), key) for table, key in self.needs]
        return all(key in type(section).model_fields for section, key in sections)


class Rules(list[Check]):
    """Rules in the order in which they are written."""

    def needs(self, *keys: str) -> Callable[[Rule], Rule]:
        """Add a rule over the named values."""

        def register(rule: Rule) -> Rule:
            self.append(Check(tuple(tuple(key.split(".")) for key in keys), rule))
            return rule

        return register


def without_effect(job: Job, table: str, keys: Iterable[str], *, because: str, else_: str) -> Iterator[Problem]:
    """Yield a problem for each key that is not at its default although another setting leaves it without effect."""
    section = getattr(job, table)
    for key in keys:
        value = getattr(section, key)
        if value != type(section).model_fields[key].default:
            message = f"{key} = {show(value)} has no effect with {because}"
            yield Problem((table, key), message, f"remove {key}, or {else_}")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
