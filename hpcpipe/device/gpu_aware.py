"""Whether MPI is given the memory of GPUs, and why: a decision made from what was asked for, said and tried out.

It asks nobody: whoever knows the library and the machine does.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class GpuAware(NamedTuple):
    """Whether messages and gradients go to MPI where they lie, on a GPU, and the reason in words."""

    on: bool
    reason: str

    @property
    def words(self) -> str:
        """One line for a log."""
        way = "given to MPI where they lie" if self.on else "copied through pinned host memory"
        return f"GPU buffers are {way}: {self.reason}"


def decide(wanted: str | bool, said: str, tried: Mapping[str, Any]) -> GpuAware:
    """Return the decision of one node.

    Parameters
    ----------
    wanted
        `[comm] cuda_aware`: "auto", true or false.
    said
        What the library says of itself: "yes", "no" or "unknown".
    tried
        What came of an exchange in a child process: `exchanged` sizes, or `wrong`, `skipped` or `error` with words;
        empty where none was made.
    """
    if isinstance(wanted, bool):
        return GpuAware(wanted, f"[comm] cuda_aware = {str(wanted).lower()}")
    says = f"MPI says {said}" if said != "unknown" else "MPI cannot be asked"
    if "exchanged" in tried:
        sizes = " and ".join(f"{size:,} bytes" for size in tried["exchanged"])
        return GpuAware(True, f"{sizes} went from GPU to GPU memory in a trial; {says}")
    why = tried.get("wrong") or tried.get("error") or tried.get("skipped") or "none was made"
    return GpuAware(False, f"an exchange between them failed in a trial ({why}); {says}")


def agree(decisions: Iterable[GpuAware | None]) -> GpuAware | None:
    """Return what all nodes do: MPI is given GPU buffers where it takes them on every one that was asked.

    None where nobody has a GPU.
    """
    found = [decision for decision in decisions if decision is not None]
    return min(found, key=lambda decision: decision.on) if found else None
