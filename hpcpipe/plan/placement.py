"""Where the virtual stages of a model lie: which chunk of which stage holds which piece of the chain of layers.

Pure arithmetic; a chunk is one virtual stage on a rank, and with one chunk a virtual stage is just the stage.
"""

from dataclasses import dataclass
from typing import Literal

Shape = Literal["round-robin", "v"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Virtual stages on stages.

    `"round-robin"` goes round (Megatron, arXiv 2104.04473): chunk c of stage s is virtual stage cS + s.
    `"v"` turns at the ends (ZB-V, arXiv 2401.10241, section 6): odd chunks run back from the last stage to the first,
    so that the first stage holds the first and the last virtual stage of two chunks.
    """

    stages: int
    chunks: int = 1
    shape: Shape = "round-robin"

    def __post_init__(self) -> None:
        """Refuse what places nothing."""
        if self.stages < 1 or self.chunks < 1:
            raise ValueError(f"{self.stages} stages of {self.chunks} chunks: at least 1 of each is needed")
        if self.shape not in ("round-robin", "v"):
            raise ValueError(f'unknown shape {self.shape!r} of a placement; known are "round-robin" and "v"')

    @property
    def virtual_stages(self) -> int:
        """Return the length of the chain."""
        return self.stages * self.chunks

    def virtual(self, stage: int, chunk: int) -> int:
        """Return the virtual stage that is this chunk of this stage."""
        turned = self.shape == "v" and chunk % 2 == 1
        return chunk * self.stages + (self.stages - 1 - stage if turned else stage)

    def owner(self, virtual: int) -> tuple[int, int]:
        """Return the stage and the chunk that hold a virtual stage."""
        chunk, place = divmod(virtual, self.stages)
        turned = self.shape == "v" and chunk % 2 == 1
        return (self.stages - 1 - place if turned else place), chunk
