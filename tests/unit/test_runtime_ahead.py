"""The engine with a device that does tasks in order: what it is given ahead, and what waits until a task is done."""

import itertools

import pytest

from hpcpipe.device import Emulated
from hpcpipe.plan import Kind, Limits, Placement, Schedule, Task, TimeClass
from hpcpipe.runtime import Engine, NoBuckets
from hpcpipe.runtime import engine as engine_module
from hpcpipe.runtime.channel import Arrival, Neighbour
from hpcpipe.runtime.header import Content, Header

F0, F1, F2, B0, B1, B2 = (Task(kind, m) for kind in (Kind.F, Kind.B) for m in range(3))


class _Given:
    """A task that is done after so many looks at the device, and took a time of its own."""

    in_order, due, again = True, None, ()

    def __init__(self, device, task, times):
        self._device, self._task, self.times = device, task, times

    def done(self):
        return self._device.looks > self._device.over[self._task]

    def result(self):
        return f"of {self._task}"


class _Device:
    """A stage whose device needs a number of the engine's turns for a task."""

    has_data = False

    def __init__(self, log, *, turns, times=lambda _task: None):
        self.log, self.turns, self.looks, self.over, self._last = log, turns, 0, {}, 0
        self._times = times

    def load(self, step):
        self.log.append("load")

    def start(self, step, task, received):
        self.log.append(("given", task, received))
        self._last = self.over[task] = max(self._last, self.looks) + self.turns
        return _Given(self, task, self._times(task))


class _Mailbox:
    """Hands a message out at a given poll."""

    due, sending = None, False

    def __init__(self, messages, device):
        self._messages, self._device, self._log, self.polls = list(messages), device, device.log, 0

    def begin(self, step):
        pass

    def poll(self):
        self.polls += 1
        self._device.looks += 1
        came = [(at, *rest) for at, *rest in self._messages if at <= self.polls]
        self._messages = [each for each in self._messages if each[0] > self.polls]
        found = []
        for _, kind, microbatch in came:
            header = Header(0, microbatch, 0, 0, Content.of("t", []))
            found.append((Neighbour(kind, 0, 0), Arrival(header, f"{kind.name}{microbatch} came", 7, 0)))
        return found, []

    def send(self, stage, feeds, value, *, step):
        self._log.append(("sent", feeds, value))

    def release(self, task, slot):
        self._log.append(("released", task))


class _Waiting:
    def idle(self, due=None):
        pass

    def during(self, due):
        pass

    def busy(self):
        pass


class _Recorder:
    def __init__(self, log):
        self.log, self.rows = log, []

    def event(self, kind, step, microbatch, chunk, t_ready, t_start, t_end, wait_class=0, **more):
        kind = Kind(kind)
        self.rows.append((kind, microbatch, t_ready, t_start, t_end, TimeClass(wait_class)))
        if kind <= Kind.W:
            self.log.append(("done", Task(kind, microbatch)))


def _run(messages, *, ahead, turns=4, microbatches=3, hint="bf", limits=None, times=lambda _task: None):
    """Run one step on the last of two stages; return the log, the recorder and the device."""
    log = []
    device = _Device(log, turns=turns, times=times)
    recorder = _Recorder(log)
    schedule = Schedule(hint, "ready", Placement(2), microbatches, (limits or Limits(),) * 2)
    engine = Engine(
        stage=device,
        mailbox=_Mailbox(messages, device),
        buckets=NoBuckets(),
        recorder=recorder,
        waiting=_Waiting(),
        number=1,
        make_plan=lambda _step, _gathering=(): schedule.stage_plan(1),
        ahead=ahead,
    )
    engine.run_step(0)
    return log, recorder, device


ALL_AT_ONCE = [(1, Kind.F, 0), (1, Kind.F, 1), (1, Kind.F, 2)]


def _open(log):
    """Return how many tasks the device had after each entry of the log."""
    return list(itertools.accumulate({"given": 1, "done": -1}.get(each[0], 0) for each in log if each != "load"))


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_device_is_given_as_many_tasks_as_it_may_have_and_no_more(ahead):
    log, _, _ = _run(ALL_AT_ONCE, ahead=ahead)
    assert max(_open(log)) == ahead
    assert [each[1] for each in log if each[0] == "given"] == [each[1] for each in log if each[0] == "done"]
    assert sum(each[0] == "done" for each in log) == 6


def test_a_follower_on_this_stage_is_given_behind_what_it_needs_with_its_value():
    log, _, _ = _run(ALL_AT_ONCE, ahead=2)
    assert log[1:3] == [("given", F0, "F0 came"), ("given", B0, f"of {F0}")]


def test_an_output_is_handed_on_when_its_task_is_given_and_its_slot_kept_until_that_is_done():
    log, _, _ = _run(ALL_AT_ONCE, ahead=2)
    for microbatch in range(3):
        backward, forward = Task(Kind.B, microbatch), Task(Kind.F, microbatch)
        given = next(index for index, each in enumerate(log) if each[:2] == ("given", backward))
        assert log[given + 1] == ("sent", backward, f"of {backward}")
        released, done = log.index(("released", forward)), log.index(("done", backward))
        assert given < released, "a slot may be written again while the device reads it"
        assert done - released == 1, "it is released when the engine has noticed the end"


def test_what_arrives_while_the_device_is_busy_is_among_what_is_chosen_from():
    """The third task is chosen when the first is done, not when the second is given: B of what came first is next."""
    log, _, _ = _run([(1, Kind.F, 0), (4, Kind.F, 2), (5, Kind.F, 1)], ahead=2, turns=6)
    given = [each[1] for each in log if each[0] == "given"]
    assert given[:3] == [F0, B0, F1], "the forward that came later stands first in the order"


def test_a_rank_waits_only_while_its_device_has_nothing():
    _, recorder, _ = _run([(1, Kind.F, 0), (30, Kind.F, 1), (60, Kind.F, 2)], ahead=2, turns=3)
    waits = [row for row in recorder.rows if row[0] is Kind.WAIT]
    assert [row[5] for row in waits] == [TimeClass.DEPENDENCY] * 2
    tasks = [row for row in recorder.rows if row[0] <= Kind.W]
    for _, _, _, begin, end, _ in waits:
        assert all(end <= t_start or t_end <= begin for _, _, _, t_start, t_end, _ in tasks)


def test_times_are_the_devices_within_what_the_rank_has_seen_and_one_behind_the_other(monkeypatch):
    clock = itertools.count(1000, 10)
    monkeypatch.setattr(engine_module, "now", lambda: next(clock))
    impossible = {F0: (0, 5), B0: (10**9, 2 * 10**9), F1: (2000, 1900)}
    _, recorder, _ = _run(ALL_AT_ONCE, ahead=2, times=impossible.get)
    last = 0
    for kind, _, ready, start, end, _ in recorder.rows:
        if kind <= Kind.W:
            assert max(ready, last) <= start <= end < 10**9
            last = end


def test_a_time_that_is_possible_is_taken_as_it_is(monkeypatch):
    clock = itertools.count(0, 10)
    monkeypatch.setattr(engine_module, "now", lambda: next(clock))
    seen = {}

    def times(task):
        time = next(clock)
        seen[task] = time + 1, time + 3
        return seen[task]

    _, recorder, _ = _run(ALL_AT_ONCE, ahead=1, times=times)
    assert {Task(kind, m): (start, end) for kind, m, _, start, end, _ in recorder.rows if kind <= Kind.W} == seen


def test_a_cap_counts_a_backward_that_is_given_as_done():
    log, _, _ = _run(ALL_AT_ONCE, ahead=2, limits=Limits(1))
    in_flight = itertools.accumulate(1 if each[1].kind is Kind.F else -1 for each in log if each[0] == "given")
    assert max(in_flight) == 1


def test_an_emulated_device_that_does_tasks_in_order_has_them_one_behind_the_other():
    time = [100]
    device = Emulated(lambda: time[0], in_order=True)
    first, second = device.run(50), device.run(20)
    assert (first.times, second.times) == ((100, 150), (150, 170))
    assert device.sealed(bytearray(8), 0, 8).due == 170, "what the last one has made is there when it is done"
    time[0] = 160
    assert first.done() and not second.done()
    assert device.run(5).times == (170, 175)
    time[0] = 400
    assert device.sealed(bytearray(8), 0, 8) is None
    assert device.run(5).times == (400, 405)
