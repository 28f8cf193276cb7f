"""Types of the compiled simulator (native/simulate_module.cpp); it does not use MPI."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Rows: TypeAlias = tuple[NDArray[np.uint8], list[int]]  # of all stages, and where each stage's begin and the last end

def families() -> list[str]: ...
def family_orders(family: str, *, stages: int, chunks: int, microbatches: int, k: int) -> list[NDArray[np.int32]]: ...
def uniforms(seed: int, coordinates: list[NDArray[np.int64]], tail: Sequence[int]) -> NDArray[np.float64]: ...
def lognormals(seed: int, coordinates: list[NDArray[np.int64]], sigma: float) -> NDArray[np.float64]: ...

class Link:
    def __init__(
        self,
        *,
        base: float = 0.0,
        sigma: float = 0.0,
        overtaking: bool = True,
        duplex: bool = True,
        occupied_ns: int = 0,
        seed: int = 0,
        step: int = 0,
    ) -> None: ...
    def use_bursts(self, *, every: float, length: float, factor: float) -> None: ...

class Schedule:
    def __init__(self, *, stages: int, chunks: int, microbatches: int, v: bool, split: bool, ordered: bool) -> None: ...
    def use_rule(self, *, forward_first: bool, rounds: bool) -> None: ...
    def use_family(self, family: str, *, k: int, fixed: bool) -> None: ...
    def use_orders(self, orders: list[NDArray[np.int32]], *, fixed: bool) -> None: ...
    def run(
        self,
        caps: NDArray[np.int64],
        durations: NDArray[np.int64],
        begin: NDArray[np.int64],
        link: Link,
        arrival: Callable[[int, int, int, int], int] | None,
        agreement_ns: int,
        bucket_durations: NDArray[np.int64],
        bucket_counts: NDArray[np.int64],
        replicated: bool,
        gathered: NDArray[np.int64],
        phased: bool,
        norm_ns: int,  # below 0: no norm
        keep_rows: bool,
    ) -> tuple[
        list[int],  # stages that are stuck
        NDArray[np.int64],  # end by stage
        NDArray[np.int64],  # ns by stage and class
        NDArray[np.int64],  # peak in flight by stage
        NDArray[np.int64],  # peak of the stash by stage
        NDArray[np.int64],  # when the all-gathers end, by stage and bucket
        tuple[_Rows, _Rows, NDArray[np.uint8]] | None,  # rows, those beside, and messages, as bytes
    ]: ...
