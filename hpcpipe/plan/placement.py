"""Which virtual stage of the model lies on which rank: a rank may hold several chunks, round-robin or folded in a V."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Placement:
    """`stages` ranks with `chunks` virtual stages each.

    In `round-robin` chunk c of stage s is virtual stage c·S + s (Megatron's interleaving); in `v` every odd chunk runs
    backwards, c·S + S - 1 - s, so that with two chunks the first stage has both ends of the model.
    """

    stages: int
    chunks: int = 1
    shape: Literal["round-robin", "v"] = "round-robin"

    @property
    def virtual_stages(self) -> int:
        """Return the length of the chain of virtual stages."""
        return self.stages * self.chunks

    def virtual(self, stage: int, chunk: int) -> int:
        """Return the place in the chain of a stage's chunk."""
        folded = self.shape == "v" and chunk % 2 == 1
        return chunk * self.stages + (self.stages - 1 - stage if folded else stage)

    def owner(self, virtual: int) -> tuple[int, int]:
        """Return the stage and chunk that hold a virtual stage."""
        chunk, place = divmod(virtual, self.stages)
        folded = self.shape == "v" and chunk % 2 == 1
        return (self.stages - 1 - place if folded else place), chunk
