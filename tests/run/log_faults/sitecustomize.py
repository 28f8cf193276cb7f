"""Loaded by every Python whose PYTHONPATH names this folder: spoils the event log as HPCPIPE_TEST_LOG_FAULT says.

It is "what:rank:step": "full" lets the rank write no file beyond 16 KiB any more, "vanish" removes its log, "kill"
kills the rank; "blocked" puts a file in place of the events' folder before anything starts.
"""

import os

MY_RANK = os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))

if "HPCPIPE_TEST_LOG_FAULT" in os.environ and MY_RANK is not None:
    import resource
    import signal
    from contextlib import suppress

    from hpcpipe.events import EventWriter
    from hpcpipe.train import event_log

    what, rank, at_step = os.environ["HPCPIPE_TEST_LOG_FAULT"].split(":")
    LIMIT = 1 << 14  # enough for the metrics of a short run
    step, start = EventWriter.step, event_log.EventLog.__init__

    def spoiled_step(self, number, *arguments, **options):
        """Keep the row of a step, then spoil the log."""
        step(self, number, *arguments, **options)
        if rank != MY_RANK or number != int(at_step):
            return
        if what == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
        elif what == "vanish":
            self.path.unlink()
        elif what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)

    def spoiled_start(self, settings, header, *, world, folder):
        """Open the log where there is no folder for it."""
        if what == "blocked":
            with suppress(OSError):  # another rank has done it
                folder.rmdir()
            folder.touch()
        start(self, settings, header, world=world, folder=folder)

    EventWriter.step = spoiled_step
    event_log.EventLog.__init__ = spoiled_start
