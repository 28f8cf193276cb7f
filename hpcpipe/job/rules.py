"""What a rule over several values is: a small function that yields problems, and the values that it looks at.

It is left out where one of those is wrong by itself, so one cause gives one fault; it must not know any rule.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcpipe.job.faults import Path, Problem
from hpcpipe.job.schema import Job

Rule = Callable[[Job, int | None], Iterator[Problem]]
"""(job, ranks where known) -> problems."""


class Check(NamedTuple):
    """A rule and the values it needs."""

    needs: tuple[Path, ...]
    rule: Rule


class Rules(list[Check]):
    """Rules in the order in which they are written."""

    def needs(self, *keys: str) -> Callable[[Rule], Rule]:
        """Add a rule over the named values."""

        def register(rule: Rule) -> Rule:
            self.append(Check(tuple(tuple(key.split(".")) for key in keys), rule))
            return rule

        return register


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return the number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
