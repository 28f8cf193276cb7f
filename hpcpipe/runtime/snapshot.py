"""What a rank is doing at this moment, as JSON can hold it: for people and for the view over all ranks (hang_view.py).

It is taken by another thread than the one that works, so it only reads, and reads again what changed meanwhile.
"""

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from hpcpipe.plan import Kind
from hpcpipe.plan.missing import missing_inputs
from hpcpipe.runtime.clock import now
from hpcpipe.runtime.engine import Engine
from hpcpipe.runtime.mailbox import Mailbox
from hpcpipe.runtime.mesh import Place

_ATTEMPTS = 20
T = TypeVar("T")


def snapshot(engine: Engine, mailbox: Mailbox, place: Place, *, in_collective: str = "") -> dict[str, Any]:
    """Return step, ready-set, tasks, messages and stacks of this process.

    `in_collective`: which collective of its tensor slices a task of this rank waits in.
    """
    return {
        "in_collective": in_collective,
        **_steadily(lambda: _tasks(engine, place)),
        **_steadily(mailbox.pending),
        "at": _place_of_main_thread(),
        "stacks": _stacks(),
    }


def _tasks(engine: Engine, place: Place) -> dict[str, Any]:
    view, time = engine.view(), now()
    plan = view.plan
    finished = list(view.finished)
    running = [] if view.running is None else [view.running[0]]
    missing = missing_inputs(
        plan.placement, plan.stage, plan.microbatches, done={*finished, *running}, arrived=set(view.received)
    )
    return {
        "step": view.step,
        "running": None
        if view.running is None
        else {"task": str(view.running[0]), "for_s": (time - view.running[1]) * 1e-9},
        "waits_for": [
            {
                "task": str(task),
                "what": "the activation" if task.kind is Kind.F else "the gradient",
                "microbatch": task.microbatch,
                "chunk": task.chunk,
                "peer": place.rank_of(stage),
                "made_by": str(made_by),
            }
            for task, stage, made_by in missing
        ],
        "ready": sorted(map(str, plan.ready)),
        "collectives": sorted(map(str, view.collectives)),
        "agreement": view.agreement,
        "of_next_step": sorted(map(str, view.early)),
        "finished": list(map(str, finished)),
    }


def _steadily(read: Callable[[], T]) -> T:
    """Read, and read again if what was read was being changed."""
    for _ in range(_ATTEMPTS):
        try:
            return read()
        except (RuntimeError, IndexError):  # a set or list that changes while it is walked
            continue
    return read()


def _place_of_main_thread() -> str:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    entries = traceback.extract_stack(frame)
    return f"{entries[-1].filename}:{entries[-1].lineno} in {entries[-1].name}" if entries else ""


def _stacks() -> dict[str, list[str]]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, 'thread')} ({ident})": "".join(traceback.format_stack(frame)).splitlines()
        for ident, frame in sys._current_frames().items()
    }
