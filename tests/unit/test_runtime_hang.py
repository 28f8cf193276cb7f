"""Who is stuck, from states written by hand; and suspicions that are dropped as long as some rank still moves."""

import json
from contextlib import suppress

import pytest

from hpcpipe.plan import Kind, Placement, Task
from hpcpipe.plan.missing import Missing, missing_inputs
from hpcpipe.runtime import failure, watchdog
from hpcpipe.runtime.hang_view import first_stuck
from hpcpipe.runtime.peers import Peer

F, B = Kind.F, Kind.B


def _wait(kind, microbatch, peer):
    what = "the activation" if kind == "F" else "the gradient"
    task = f"{kind}{microbatch}"
    return {"task": task, "what": what, "microbatch": microbatch, "chunk": 0, "peer": peer, "made_by": task}


def _state(step=5, phase="step", turns=True, running=None, waits_for=(), finished=(), collectives=(), posted=2):
    return {
        "step": step,
        "phase": phase,
        "turns": turns,
        "running": running,
        "waits_for": list(waits_for),
        "finished": list(finished),
        "collectives": list(collectives),
        "receives": [{"feeds": "F", "chunk": 0, "posted": posted}],
        "at": "model.py:7 in forward",
    }


def test_whoever_lacks_what_was_sent_is_first_and_those_behind_it_are_not():
    states = {
        0: _state(waits_for=[_wait("B", 1, 1)], finished=["F0", "F1", "B0"]),
        1: _state(waits_for=[_wait("B", 1, 2)], finished=["F0", "F1", "B0"]),
        2: _state(waits_for=[_wait("F", 1, 1)], finished=["F0", "B0"]),
        3: _state(waits_for=[_wait("F", 1, 2)], finished=["F0", "B0"]),
    }
    rank, what = first_stuck(states, {})
    assert rank == 2
    assert what == (
        "waits for the activation of micro-batch 1 in step 5 from rank 1, which has sent it: the message is lost or "
        "its link is"
    )
    states[2]["receives"][0]["posted"] = 0
    assert first_stuck(states, {}).what.endswith("no receive slot is free for it")


def test_a_slice_that_stands_in_code_is_named_and_not_the_one_that_waits_for_it_in_a_collective():
    task = {"task": "F3", "for_s": 300.0}
    waiting = {**_state(turns=False, running=task), "in_collective": "all-reduce 2 of F3"}
    states = {0: waiting, 1: _state(turns=False, running=task), 2: _state(waits_for=[_wait("F", 3, 0)])}
    assert first_stuck(states, {}) == (1, "runs F3 of step 5 for 300 s, at model.py:7 in forward")
    del states[1]
    assert first_stuck(states, {}) == (0, "waits in all-reduce 2 of F3 of step 5 for the other slices of its stage")


def test_a_slice_that_lacks_a_message_is_named_and_not_the_one_that_waits_for_its_consent():
    agreeing = {**_state(), "agreement": {"proposes": ["B1", "F4"], "for_s": 300.0}}
    lacking = _state(waits_for=[_wait("F", 4, 2)])
    sender = _state(waits_for=[_wait("B", 4, 0)], finished=["F4"])
    assert first_stuck({0: agreeing, 1: lacking, 2: sender}, {}).rank == 1
    what = first_stuck({0: agreeing, 2: _state(waits_for=[_wait("B", 4, 0)])}, {}).what
    assert what == "waits in step 5 for the other slices of its stage to agree to B1, F4"


def test_a_message_of_a_step_that_its_sender_has_left_is_lost():
    states = {
        0: _state(step=6, waits_for=[_wait("B", 0, 1)], finished=["F0"]),
        1: _state(step=5, waits_for=[_wait("F", 2, 0)], finished=["F0", "B0"]),
    }
    assert first_stuck(states, {}).rank == 1


def test_a_task_that_does_not_return_is_first_also_where_others_wait_in_an_earlier_step():
    states = {
        0: _state(waits_for=[_wait("B", 0, 1)], finished=["F0"]),
        1: _state(turns=False, running={"task": "F0", "for_s": 12.0}),
        2: _state(step=4, phase="sums", turns=False),
    }
    assert first_stuck(states, {}) == (1, "runs F0 of step 5 for 12 s, at model.py:7 in forward")


def test_a_rank_that_stands_outside_of_tasks_is_named_with_its_place():
    states = {0: _state(step=6, phase="sums", turns=False), 1: _state(phase="between steps", turns=False)}
    assert first_stuck(states, {}) == (1, "stands at model.py:7 in forward (between steps, step 5)")


def test_a_rank_that_does_not_answer_is_first():
    states = {0: _state(turns=False, running={"task": "F0", "for_s": 3.0})}
    assert first_stuck(states, {2: "is stopped"}) == (2, "is stopped")
    assert first_stuck(states, {2: "is stopped", 3: "is dead"}) == (2, "is stopped (and 1 more do not answer)")


def test_replicas_and_devices_that_never_end_and_a_plain_wait_have_their_sentences():
    assert "waits for RS0 of step 5" in first_stuck({0: _state(collectives=["RS0"])}, {}).what
    assert "device to finish B1 of step 5" in first_stuck({0: _state(running={"task": "B1", "for_s": 9})}, {}).what
    assert "sums over all ranks after step 5" in first_stuck({0: _state(phase="sums", turns=False)}, {}).what


def test_what_a_stage_lacks_are_the_inputs_from_others_whose_own_part_is_done():
    """Stage 1 of 2 with two chunks in a ring: virtual stages 1 and 3; the last one makes its gradient itself."""
    found = missing_inputs(
        Placement(2, 2), 1, 2, done={Task(F, 0, 0), Task(F, 0, 1)}, arrived={Task(F, 1, 0), Task(F, 0, 0)}
    )
    assert found == [
        Missing(Task(F, 1, 1), 0, Task(F, 1, 1)),
        Missing(Task(B, 0, 0), 0, Task(B, 0, 1)),
    ]


class _Comm:
    def __init__(self, rank):
        self.rank = rank


class _NoThread:
    ident = None

    def __init__(self, *_, **__):
        pass

    def start(self):
        pass


class _Counters:
    progress = turns = 0


@pytest.fixture
def dogs(tmp_path, monkeypatch):
    """Three ranks' watchdogs that look when they are told, and the codes with which ranks ended."""
    ended = []

    def leave(comm, code):
        ended.append((comm.rank, code))
        raise _LeftError

    monkeypatch.setattr(watchdog.threading, "Thread", _NoThread)
    monkeypatch.setattr(watchdog.Watchdog, "_end_surely", staticmethod(lambda: None))
    for module in (watchdog, failure):
        monkeypatch.setattr(module, "abort", leave)
    peers = [Peer(rank, 1000 + rank, "elsewhere" if rank == 2 else "here", rank, 0) for rank in range(3)]
    made = [
        watchdog.Watchdog(
            _Comm(rank),
            peers[rank],
            everybody=lambda: peers,
            run_directory=tmp_path,
            timeout_s=0.5,
            counters=_Counters(),
            describe=_state,
        )
        for rank in range(3)
    ]
    for dog in made:
        dog._turns, dog._closing = True, _Never()
    yield made, ended
    for dog in made:
        dog._closing = watchdog.threading.Event()
        dog.close()


class _LeftError(Exception):
    pass


class _Never:
    def wait(self, _):
        return False

    def set(self):
        pass


def _look(dogs, stalled, times=1):
    for _ in range(times):
        for rank, seconds in stalled.items():
            dogs[rank]._stalled_s = seconds
            with suppress(_LeftError):
                dogs[rank]._look()


def test_while_some_rank_moves_there_is_no_verdict_and_afterwards_nothing_is_left(dogs, tmp_path):
    made, ended = dogs
    _look(made, {0: 9.0, 1: 9.0, 2: 0.1}, times=40)
    assert not ended
    assert (tmp_path / "hang" / "rank_00002.json").exists()
    _look(made, {0: 0.0, 1: 0.0, 2: 0.0}, times=2)
    assert not (tmp_path / "hang").exists()


def test_when_all_stand_the_first_that_suspects_judges_once(dogs, tmp_path):
    made, ended = dogs
    _look(made, {1: 0.6, 2: 0.6, 0: 0.4})
    assert not ended
    _look(made, {0: 0.6, 1: 0.7, 2: 0.7})
    assert ended == [(0, 6), (1, 6), (2, 6)]
    record = json.loads((tmp_path / "failures" / "rank_00000.json").read_text())
    assert record["exit_code"] == 6
    assert "no rank has made progress for 0.5 s: rank 0" in record["reason"]


def test_a_rank_that_never_answers_or_stops_answering_is_the_one_that_hangs(dogs, tmp_path):
    made, ended = dogs
    _look(made, {2: 0.1, 0: 0.6, 1: 0.6})  # rank 2 says that it moves, and nothing more
    assert not ended
    _look(made, {0: 0.9, 1: 0.9}, times=4)
    assert not ended
    _look(made, {0: 0.9, 1: 0.9}, times=3)
    assert set(ended) == {(0, 6), (1, 6)}
    verdict = json.loads((tmp_path / "hang" / "verdict.json").read_text())
    assert verdict["rank"] == 2
    assert "does not answer: its process is stopped or dead, or its node is lost" in verdict["reason"]
