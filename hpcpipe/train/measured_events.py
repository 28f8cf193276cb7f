"""A recorder that has events measured on their way to the log; what is measured is measured.py's and regroup.py's."""

from collections.abc import Callable

from hpcpipe.plan import Recorder

Measure = Callable[[int, int, int, int, int, int, int, int], object]
"""(kind, chunk, t_ready, t_start, t_end, peer, nbytes, flags) of an event."""


class MeasuredEvents:
    """Hands every event to `measure`, then to the recorder behind."""

    def __init__(self, recorder: Recorder, measure: Measure) -> None:
        self._record, self._measure = recorder.event, measure

    def event(
        self,
        kind: int,
        step: int,
        microbatch: int,
        chunk: int,
        t_ready: int,
        t_start: int,
        t_end: int,
        wait_class: int = 0,
        peer: int = -1,
        nbytes: int = 0,
        rank_in_hint: int = -1,
        ready_count: int = 0,
        flags: int = 0,
    ) -> None:
        """Measure by one event and keep it."""
        self._measure(kind, chunk, t_ready, t_start, t_end, peer, nbytes, flags)
        self._record(
            kind,
            step,
            microbatch,
            chunk,
            t_ready,
            t_start,
            t_end,
            wait_class,
            peer,
            nbytes,
            rank_in_hint,
            ready_count,
            flags,
        )
