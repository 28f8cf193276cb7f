"""Settings for every test: drawn examples are the same on every run and rank; GPUs are for `make test-gpu`.

Elsewhere they are hidden, so that jobs that leave the device to hpcpipe compute on the CPU, and the tests that need one
say in the end that they were not run. Python looks for cycles as seldom as in the command while it starts.
"""

import os

import pytest
from hypothesis import HealthCheck, settings

from hpcpipe.cli.garbage import collect_seldom

_TIMED = [HealthCheck.too_slow]  # as the deadline is: what others compute on this machine is no fault of a test
settings.register_profile("hpcpipe", deadline=None, derandomize=True, suppress_health_check=_TIMED)
settings.load_profile("hpcpipe")

collect_seldom()

_NOT_RUN = pytest.StashKey[int]()


def pytest_configure(config):
    if config.option.markexpr != "gpu" and not os.environ.get("HPCPIPE_TEST_ON_GPU"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(config, items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _sees_a_gpu():
        config.stash[_NOT_RUN] = len(marked)
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="not run: no GPU"))


def pytest_terminal_summary(terminalreporter, config):
    if count := config.stash.get(_NOT_RUN, 0):
        why = _why_none() if config.option.markexpr == "gpu" else "GPUs are for `make test-gpu`"
        terminalreporter.section("gpu", sep="=", red=True, bold=True)
        terminalreporter.write_line(f"not run: no GPU. {count} tests of real GPUs were NOT RUN: {why}.", red=True)


def _sees_a_gpu():
    import torch

    return torch.cuda.is_available()


def _why_none():
    from hpcpipe.device.gpu import why_none

    return why_none()
