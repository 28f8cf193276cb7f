"""The compiled simulator with the face of `simulate_step`: functions in, Python objects out; for tests and small use.

It must not decide anything; translating costs far more time than simulating.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcpipe.plan import Schedule, Task, TimeClass
from hpcpipe.simulate.compiled import BUCKET_KINDS, KINDS, WAIT, CompiledSchedule
from hpcpipe.simulate.links import Link, Network
from hpcpipe.simulate.step import Arrival, Duration, Message, Row, SimulatedStep


def simulate_compiled(
    schedule: Schedule,
    *,
    duration: Duration,
    arrival: Arrival,
    begin: Sequence[int] | None = None,
    buckets: Sequence[int] | None = None,
    replicated: bool = False,
    gathered: Sequence[Sequence[int]] | None = None,
    phased: bool = False,
    norm_ns: int | None = None,
    agreement_ns: int = 0,
) -> SimulatedStep:
    """Run one step as `simulate_step` does, with the same arguments and the same result.

    `duration` is asked for every task beforehand. The `arrival` of a new `Network` is computed without Python.

    Raises
    ------
    RuntimeError, ValueError
        As `CompiledSchedule`.
    """
    compiled = CompiledSchedule(schedule)
    stages, chunks = range(schedule.placement.stages), range(schedule.placement.chunks)
    kinds = KINDS if schedule.split else KINDS[:2]

    def of_lane(stage: int, kind: int, chunk: int) -> list[int]:
        return [duration(stage, Task(kinds[kind], m, chunk)) for m in range(schedule.microbatches)]

    durations = [[[of_lane(stage, kind, chunk) for chunk in chunks] for kind in range(len(kinds))] for stage in stages]
    most = max(buckets or (0,))
    bucket_durations = [
        [[duration(stage, Task(kind, bucket)) for bucket in range(most)] for kind in BUCKET_KINDS] for stage in stages
    ]
    before = [[*gathered[stage], *[0] * (most - len(gathered[stage]))] for stage in stages] if gathered else None
    owner = getattr(arrival, "__self__", None)
    network = owner if isinstance(owner, Network) and arrival == owner.arrival else Network(Link())
    result = compiled.run(
        durations,
        link=network.link,
        seed=network.seed,
        step=network.step,
        arrival=None if network is owner else arrival,
        begin=begin,
        agreement_ns=agreement_ns,
        buckets=buckets,
        bucket_durations=np.array(bucket_durations, dtype=np.int64),
        replicated=replicated,
        gathered=before,
        phased=phased,
        norm_ns=norm_ns,
        rows=True,
    )
    assert result.rows is not None and result.messages is not None and result.beside is not None

    def as_rows(by_stage: list[NDArray[Any]]) -> list[list[Row]]:
        return [
            [
                Row(None if code == WAIT else compiled.task(code), TimeClass(cause), start, end)
                for start, end, code, cause in table.tolist()
            ]
            for table in by_stage
        ]

    messages = [
        Message(source, target, compiled.task(code), sent, arrived)
        for sent, arrived, source, target, code, _ in result.messages.tolist()
    ]
    return SimulatedStep(
        begin=result.begin.tolist(),
        end=result.end.tolist(),
        rows=as_rows(result.rows),
        beside=as_rows(result.beside),
        messages=messages,
        peak_in_flight=result.peak_in_flight.tolist(),
        peak_stash=result.peak_stash.tolist(),
        gathered=[
            ends[:count] for ends, count in zip(result.gathered.tolist(), buckets or [0] * len(stages), strict=True)
        ],
    )
