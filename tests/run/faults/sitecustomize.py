"""Loaded by every Python whose PYTHONPATH names this folder: breaks one rank's stage if HPCPIPE_TEST_FAULT asks for it.

HPCPIPE_TEST_FAULT is "what:rank:step"; the moment of the fault is written to HPCPIPE_TEST_FAULT_TIME. The stage of an
emulated rank is broken where HPCPIPE_TEST_FAULT_EMULATED is set, which starts without torch.
"""

import os

MY_RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))

if "HPCPIPE_TEST_FAULT" in os.environ and MY_RANK is not None:
    import ctypes
    import signal
    import sys
    import time
    from pathlib import Path

    if "HPCPIPE_TEST_FAULT_EMULATED" in os.environ:
        from hpcpipe.runtime.synthetic import SyntheticStage as Stage
    else:
        from hpcpipe.runtime.stage import Stage

    what, rank, at_step = os.environ["HPCPIPE_TEST_FAULT"].split(":")
    start = Stage.start

    def faulty(self, step, task, received):
        """Run the task, or fail."""
        if rank == MY_RANK and step == int(at_step) and task.microbatch == 1:
            Path(os.environ["HPCPIPE_TEST_FAULT_TIME"]).write_text(repr(time.time()))
            if what == "raise":
                raise ArithmeticError("this stage was told to fail")
            if what == "exit":
                sys.exit(3)
            if what == "vanish":
                os._exit(7)
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "segv":
                ctypes.string_at(0)
        return start(self, step, task, received)

    Stage.start = faulty
