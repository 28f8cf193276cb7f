"""One finding of the doctor: what was looked at, how it is, what that means and what to do."""

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "warn", "fail", "skip"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do; the hint is empty where there is nothing to do."""

    name: str
    status: Status
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the keys that `doctor --json` promises."""
        return {"name": self.name, "status": self.status, "detail": self.detail, "hint": self.hint}
