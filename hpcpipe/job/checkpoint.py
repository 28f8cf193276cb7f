"""The table `[checkpoint]`: when the training is saved, and how many savings stay.

It must not know how they are written (checkpoint/), only what the values mean.
"""

import re
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from hpcpipe.job.section import Section
from hpcpipe.job.values import LARGEST, Count, wrong
from hpcpipe.job.words import describe, show

SPAN = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) *(?P<unit>s|min|h)")
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
EXAMPLE = 'for example every = 100 (steps), every = "10min" (also s and h), every = "end", or every = "off"'


def _every(value: Any) -> str | int:
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= LARGEST:
            raise wrong(f"must be at least 1 step, got {show(value)}", 'write every = "off" to save nothing')
        return value
    if isinstance(value, str):
        if value in ("off", "end"):
            return value
        match = SPAN.fullmatch(value)
        if match and 0 < float(match["number"]) * SECONDS[match["unit"]] <= LARGEST:
            return value
        if value.isdecimal():
            raise wrong(f"must be a number of steps without quotes, got {describe(value)}", f"write every = {value}")
    raise wrong(f"must be a number of steps or a time, got {describe(value)}", EXAMPLE)


class Checkpoint(Section):
    """`[checkpoint]`: off unless `every` says when. Whatever it says, a run that ends whole saves its last step."""

    every: Annotated[str | int, PlainValidator(_every)] = Field(
        default="off",
        description='steps or time between two checkpoints, "end": only where the run ends or is stopped, or "off"',
        examples=[100],
    )
    keep: Count = Field(default=2, description="how many of the newest checkpoints stay")
    on_signal: bool = Field(default=True, description="whether a run that is told to stop saves its last step")

    @property
    def on(self) -> bool:
        """Whether anything is saved."""
        return self.every != "off"

    @property
    def steps(self) -> int | None:
        """The steps between two checkpoints, None where they do not decide."""
        return self.every if isinstance(self.every, int) else None

    @property
    def seconds(self) -> float | None:
        """The time between two checkpoints, None where it does not decide."""
        match = SPAN.fullmatch(self.every) if isinstance(self.every, str) else None
        return None if match is None else float(match["number"]) * SECONDS[match["unit"]]
