"""Loaded by every Python whose PYTHONPATH names this folder: lets an emulated rank hang if HPCPIPE_TEST_HANG says so.

HPCPIPE_TEST_HANG is "what:rank:step"; the moment of the fault is written to HPCPIPE_TEST_HANG_TIME.
"""

import os

MY_RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))

if "HPCPIPE_TEST_HANG" in os.environ and MY_RANK is not None:
    import ctypes
    import signal
    import time
    from pathlib import Path

    from hpcpipe.plan import Kind
    from hpcpipe.runtime.mailbox import Mailbox
    from hpcpipe.runtime.synthetic import SyntheticStage

    what, rank, at_step = os.environ["HPCPIPE_TEST_HANG"].split(":")
    start, send = SyntheticStage.start, Mailbox.send

    def due(step, task):
        """Return whether this is the moment, and note it."""
        if (rank, int(at_step)) != (MY_RANK, step) or (task.kind, task.microbatch) != (Kind.F, 1):
            return False
        Path(os.environ["HPCPIPE_TEST_HANG_TIME"]).write_text(repr(time.time()))
        return True

    def faulty_start(self, step, task, received):
        """Start the task, or never return."""
        if what in ("loop", "lock", "stop", "kill") and due(step, task):
            if what == "loop":
                endless_loop()
            if what == "lock":
                ctypes.PyDLL(None).pause()  # waits for ever without giving Python's lock back
            os.kill(os.getpid(), signal.SIGSTOP if what == "stop" else signal.SIGKILL)
        return start(self, step, task, received)

    def endless_loop():
        """Use a core for ever."""
        while True:
            pass

    def faulty_send(self, stage, feeds, value, *, step):
        """Send, or lose the message."""
        if what != "lose" or not due(step, feeds):
            send(self, stage, feeds, value, step=step)

    SyntheticStage.start = faulty_start
    Mailbox.send = faulty_send
