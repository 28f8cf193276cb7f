"""Somebody else speaks for a rank that MPI ends at its start, or that waits there for ever."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, signal, sys, time
from hpcpipe.cluster.starting import explained
os.environ["PATH"] = sys.argv[3]
with explained("it was ended", while_it_lasts="it takes long", patience_s=float(sys.argv[2])):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "slow":
        time.sleep(1.0)
print("it works", file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("what", "patience_s", "said"),
    [
        ("well", 60, ["it works"]),
        ("killed", 60, ["it was ended"]),
        ("slow", 60, ["it works"]),
        ("slow", 0.2, ["it takes long", "it works"]),
    ],
)
def test_what_is_said_of_a_start_is_what_became_of_it(what: str, patience_s: float, said: list[str]) -> None:
    command = [sys.executable, "-c", CODE, what, str(patience_s), os.environ["PATH"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines() == said


def test_nothing_wrong_is_said_where_the_path_leads_to_no_tools() -> None:
    command = [sys.executable, "-c", CODE, "well", "60", "/nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines() == ["it works"]
