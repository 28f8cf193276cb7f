"""The in-flight cap of every stage: how many micro-batches may be between their forward and their backward.

Memory is what a cap costs, so the default is the memory that fixed 1F1B needs at its fullest stage.
"""

from collections.abc import Sequence
from math import ceil


def in_flight_caps(setting: str | int | Sequence[int], *, stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the cap on n_F - n_B of each stage, never above the number of micro-batches.

    Parameters
    ----------
    setting
        `"equal-memory"`: min(1.5 (S - s), S) rounded up, so that no stage stashes more than 1F1B does at stage 0;
        `"1f1b"`: S - s; `"2x"`, `"1.5x"`: that multiple of S - s; a number: the same on all stages; a list: one each.

    Raises
    ------
    ValueError
        The setting is none of these, a list of another length, or a cap below 1 (the pipeline could not move).
    """
    remaining = [stages - stage for stage in range(stages)]
    if setting == "equal-memory":
        caps = [min(ceil(1.5 * left), stages) for left in remaining]
    elif setting == "1f1b":
        caps = remaining
    elif isinstance(setting, str) and setting.endswith("x"):
        caps = [ceil(float(setting[:-1]) * left) for left in remaining]
    elif isinstance(setting, int):
        caps = [setting] * stages
    elif isinstance(setting, str):
        raise ValueError(f'unknown in-flight cap {setting!r}; use "equal-memory", "1f1b", "2x", a number or a list')
    else:
        caps = list(setting)
    if len(caps) != stages:
        raise ValueError(f"in-flight cap lists {len(caps)} stages, the pipeline has {stages}")
    if min(caps) < 1:
        raise ValueError(f"in-flight cap {min(caps)} on stage {caps.index(min(caps))}: at least 1 is needed")
    return tuple(min(cap, microbatches) for cap in caps)
