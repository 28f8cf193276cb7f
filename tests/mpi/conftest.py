"""Set-up for tests under mpiexec: one rank's output, tests in lockstep, and no failure that leaves other ranks waiting.

Rank 0 reports as pytest does. The other ranks say nothing but their failures, each line with their rank.
"""

import os
import sys
import time

import pytest

# How long a rank waits at the end of a test for the others: a failed one briefly (they may wait for what it will never
# send), one that passed longer than pytest-timeout lets any test run.
FAILED_WAITS_S, PASSED_WAITS_S = 5.0, 150.0


@pytest.hookimpl(trylast=True)  # after pytest has made its reporter
def pytest_configure(config):
    if not config.getoption("--with-mpi", default=False):
        return
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.rank
    if rank > 0:
        plugins = config.pluginmanager
        plugins.unregister(name="terminalreporter")
        plugins.register(pytest.TerminalReporter(config, file=QuietStream(rank)), "terminalreporter")
    config.pluginmanager.register(Lockstep(config), "hpcpipe-lockstep")


@pytest.fixture
def comm():
    """Give a duplicate of the world, so that a test's messages never meet another's."""
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


class Lockstep:
    """Ends every test on all ranks together, or else the run: a failed rank leaves its peers hanging."""

    def __init__(self, config):
        from mpi4py import MPI

        self._comm = MPI.COMM_WORLD.Dup()
        self._sum = MPI.SUM
        self._failed = False
        self._stop_after = config.getoption("maxfail")
        self._num_failed = 0

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self._failed = True
            if self._comm.rank > 0:
                say(self._comm.rank, f"FAILED {report.nodeid} ({report.when})\n{report.longreprtext}")
                for title, text in report.sections:
                    say(self._comm.rank, f"-- {title}\n{text}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._failed = False
        result = yield
        if self._meet(item.nodeid):
            self._num_failed += 1
            if self._stop_after and self._num_failed >= self._stop_after:
                item.session.shouldfail = f"stopping after {self._num_failed} tests failed on some rank"
        return result

    def _meet(self, name):
        """Return on how many ranks the test failed; end the job if some rank does not come."""
        mine, total = bytearray(self._failed.to_bytes(4, sys.byteorder)), bytearray(4)
        request = self._comm.Iallreduce([mine, "i"], [total, "i"], op=self._sum)
        give_up = time.monotonic() + (FAILED_WAITS_S if self._failed else PASSED_WAITS_S)
        while not request.Test():
            if time.monotonic() > give_up:
                say(self._comm.rank, f"{name}: other ranks have not ended this test, so the run ends here")
                self._comm.Abort(1)
                os._exit(1)
            time.sleep(0.0005)
        return int.from_bytes(total, sys.byteorder)


class QuietStream:
    """A terminal that shows nothing until pytest-timeout writes its last words to it."""

    encoding = "utf-8"

    def __init__(self, rank):
        self._rank = rank
        self._heard = False

    def write(self, text):
        self._heard = self._heard or "+ Timeout +" in text
        if self._heard:
            say(self._rank, text)

    def flush(self):
        pass

    def isatty(self):
        return False


def say(rank, text):
    """Write to the true standard error, past pytest's capture, every line with the rank; in one piece."""
    lines = "".join(f"[rank {rank}] {line}\n" for line in text.splitlines())
    sys.__stderr__.write(lines)
    sys.__stderr__.flush()
