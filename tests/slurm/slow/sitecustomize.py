"""Loaded by every Python whose PYTHONPATH names this folder: makes the steps of ranks last HPCPIPE_TEST_STEP_S more."""

import os

if "HPCPIPE_TEST_STEP_S" in os.environ and "PMI_RANK" in os.environ:
    import time

    from hpcpipe.runtime.engine import Engine

    run_step = Engine.run_step

    def slow(self, step):
        """Run the step, some time later."""
        time.sleep(float(os.environ["HPCPIPE_TEST_STEP_S"]))
        return run_step(self, step)

    Engine.run_step = slow
