"""The section `[tune]`: what a run may change about itself while it trains."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from hpcpipe.job.section import Section
from hpcpipe.job.values import Count, wrong
from hpcpipe.job.words import describe
from hpcpipe.plan.sizes import SIZE, parse_bytes


def show_bytes(number: float) -> str:
    """Return bytes in the unit that suits them."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(number) >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:.0f} B"


def _memory(value: Any) -> str:
    if value == "none" or (isinstance(value, str) and SIZE.fullmatch(value) and parse_bytes(value) > 0):
        return str(value)
    raise wrong(f'must be "none" or a size in bytes, got {describe(value)}', 'for example memory_limit = "2 GiB"')


Memory = Annotated[str, PlainValidator(_memory)]


class Tune(Section):
    """`[tune]`: what a run chooses again while it trains."""

    grouping: Literal["off", "on"] = Field(
        default="off", description="whether k of kfkb, and the caps under readiness, follow the network"
    )
    microbatch_size: Literal["fixed", "tuned"] = Field(
        default="fixed", description="whether grouping may change the micro-batch size too, which changes last bits"
    )
    memory_limit: Memory = Field(
        default="none", description="most memory that grouping may use on a rank", examples=["8 GiB"]
    )
    interval: Count = Field(default=20, description="steps between two looks at all groupings")
    trial: Count = Field(default=5, description="steps that a new grouping is measured over before it is kept")
    margin: float = Field(default=0.03, ge=0, lt=1, description="least predicted gain for which a grouping is tried")

    fusion: Literal["off", "on"] = Field(
        default="off",
        description="whether the size of the gradient buckets is looked for by the times of steps, from bucket_mb on",
    )

    @property
    def limit_bytes(self) -> int | None:
        """The memory limit, None where there is none."""
        return None if self.memory_limit == "none" else parse_bytes(self.memory_limit)
