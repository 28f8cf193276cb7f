"""A run in which one rank stands still ends within the bound, names it and why, and leaves every rank's state."""

import json
import os
import re
import time
from pathlib import Path

import pytest
from command import EMULATED, hpcpipe, is_alive

HANGS = Path(__file__).parent / "hangs"
TIMEOUT_S = 4.0
END_WITHIN_S = 2 * TIMEOUT_S + 12.0
RANK, STEP = 1, 20
TOLD = {
    "lose": (2, 6, r"waits for the activation of micro-batch 1 in step 20 from rank 1, which has sent it"),
    "loop": (1, 6, r"runs F1 of step 20 for \d+ s, at .*sitecustomize.py:\d+ in endless_loop"),
    "lock": (1, 6, r"does not answer: a call holds Python's lock"),
    "stop": (1, 6, r"is stopped \(SIGSTOP"),
}


def _environment(tmp_path, what):
    (tmp_path / "job.toml").write_text(EMULATED)
    return {
        "PYTHONPATH": os.pathsep.join([str(HANGS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "HPCPIPE_TEST_HANG": f"{what}:{RANK}:{STEP}",
        "HPCPIPE_TEST_HANG_TIME": str(tmp_path / "when"),
    }


def _seconds_since_fault(tmp_path):
    return time.time() - float((tmp_path / "when").read_text())


@pytest.mark.parametrize("what", TOLD)
def test_the_rank_that_is_stuck_is_named_with_what_it_waits_for_and_the_run_ends(tmp_path, what):
    rank, code, told = TOLD[what]
    process = hpcpipe("run", "job.toml", "--run-dir", "run", cwd=tmp_path, environment=_environment(tmp_path, what))
    assert _seconds_since_fault(tmp_path) < END_WITHIN_S
    assert process.returncode == code, process.stderr
    assert re.search(rf"rank {rank}\b", process.stderr), process.stderr
    assert re.search(told, process.stderr), process.stderr
    assert "Traceback" not in process.stderr
    ranks = json.loads((tmp_path / "run" / "ranks.json").read_text())
    give_up = time.monotonic() + 5.0
    while any(is_alive(entry["pid"]) for entry in ranks) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not [entry["pid"] for entry in ranks if is_alive(entry["pid"])]
    assert process.stderr.count("is the first that is stuck") == 1
    if what == "lock":
        assert "in faulty_start" in process.stderr
    states = {n: json.loads((tmp_path / "run" / "hang" / f"rank_{n:05d}.json").read_text()) for n in range(4)}
    answering = [state for n, state in states.items() if n != RANK or what in ("lose", "loop")]
    assert [state["pid"] for state in states.values()] == [entry["pid"] for entry in ranks]
    for state in answering:
        assert state["step"] == STEP
        assert {"ready", "receives", "sends", "finished", "waits_for", "running"} <= state.keys()
        assert any("MainThread" in name for name in state["stacks"])
        assert all({"peer", "tag", "posted"} <= inlet.keys() for inlet in state["receives"])
    if what == "loop":
        assert any("in endless_loop" in line for stack in states[RANK]["stacks"].values() for line in stack)


def test_of_tensor_slices_the_one_that_lacks_a_message_is_named_not_the_one_that_waits_for_its_consent(tmp_path):
    """Ranks 2 and 3 are the slices of the last stage; what rank 1 sends to rank 3 is lost."""
    mesh = ("--set", "parallel.pipeline=2", "--set", "parallel.tensor=2")
    environment = _environment(tmp_path, "lose")
    process = hpcpipe("run", "job.toml", *mesh, "--run-dir", "run", cwd=tmp_path, environment=environment)
    assert process.returncode == 6, process.stderr
    told = r"rank 3 \(stage 1\) .* waits for the activation of micro-batch 1 in step 20 from rank 1, which has sent it"
    assert re.search(told, process.stderr), process.stderr


def test_a_killed_rank_ends_the_run_at_once_whatever_the_timeout(tmp_path):
    """That the right one is named is in test_a_rank_fails.py."""
    process = hpcpipe("run", "job.toml", "--run-dir", "run", cwd=tmp_path, environment=_environment(tmp_path, "kill"))
    assert _seconds_since_fault(tmp_path) < END_WITHIN_S
    assert process.returncode == 4
    assert re.search(r"killed by signal 9|died", process.stderr), process.stderr
    assert not (tmp_path / "run" / "hang").exists()
