"""A GPU as a device, on one that is none: times, events, what orders copies behind tasks, and what is refused."""

import pytest
import torch
from racing_gpu import RaceError, RacingGpu

from hpcpipe.device.cuda import Cuda
from hpcpipe.device.messages import Staged


def _staged(cuda):
    return Staged(cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward)


def _cuda(seed=0, *, now=lambda: 0, messages=_staged, **more):
    return Cuda(RacingGpu(seed), now=now, messages=messages, **more)


def _finish(cuda, *, until):
    """Let the GPU go on until something is done; it goes on by chance, so it comes to it."""
    while not until.done():
        pass


def test_a_task_is_over_later_but_what_follows_may_use_its_output_at_once():
    cuda = _cuda()
    first = cuda.launch("F0", lambda: torch.ones(3))
    output = first.result()
    second = cuda.launch("B0", lambda: output * 2)
    assert first.in_order and second.in_order and first.due is None
    assert second._end.stream.queue, "nothing was asked of the GPU, so nothing is over"
    _finish(cuda, until=second)
    assert first.done(), "it came before"
    assert torch.equal(second.result(), torch.full((3,), 2.0))
    assert second.result() is None, "an output is not kept for longer than it is needed"


def test_tasks_are_over_in_the_order_given_whatever_the_chance():
    for seed in range(20):
        cuda = _cuda(seed)
        tasks = [cuda.launch(str(i), lambda: None) for i in range(5)]
        while not tasks[-1].done():
            over = [task._end.passed for task in tasks]
            assert over == sorted(over, reverse=True)
        times = [time for task in tasks for time in task.times]
        assert times == sorted(times)


def test_times_of_events_are_the_origins_plus_what_has_passed_since():
    host = iter([1000, 1010, 2000, 2004, 3000, 3050])  # three tries, of which the second is the narrowest
    cuda = _cuda(now=lambda: next(host))
    clock = cuda.clock
    assert (clock._at, clock.uncertainty) == (2002, 2)
    task = cuda.launch("F0", lambda: None)
    _finish(cuda, until=task)
    begin, end = task._begin.time - clock._origin.time, task._end.time - clock._origin.time
    assert task.times == (2002 + begin, 2002 + end)


def test_the_clock_waits_for_its_first_origin_and_later_keeps_the_one_before(monkeypatch):
    """Others may keep a shared GPU for long, and the time of an event cannot be told from no origin."""
    monkeypatch.setattr("hpcpipe.device.cuda._LOOKS", 5)
    gpu = RacingGpu(0)
    go_on, looks = gpu.go_on, []
    gpu.go_on = lambda: looks.append(1) or (go_on() if len(looks) > 50 else None)
    cuda = Cuda(gpu, now=lambda: len(looks), messages=_staged)
    origin = cuda.clock._origin
    assert origin.passed and len(looks) > 50
    gpu.go_on = lambda: None
    cuda.begin_step()
    assert cuda.clock._origin is origin
    gpu.go_on = go_on
    task = cuda.launch("F0", lambda: None)
    _finish(cuda, until=task)
    assert task.times[0] <= task.times[1]


def test_events_are_used_again_but_none_that_somebody_still_asks():
    time = [0]

    def now():
        time[0] += 7
        return time[0]

    cuda = _cuda(now=now)
    made = []
    event = cuda.gpu.event
    cuda.gpu.event = lambda: made.append(event()) or made[-1]
    held = [cuda.launch("first", lambda: None), cuda.launch("second", lambda: None)]
    after = cuda.after()
    for _ in range(50):
        task = cuda.launch("more", lambda: None)
        _finish(cuda, until=task)
        assert task.times[0] <= task.times[1] and not task.again
        cuda.begin_step()
    events = {id(each) for each in (held[0]._begin, held[0]._end, held[1]._begin, held[1]._end)}
    assert len(events) == 4 and not events & {id(each) for each in cuda.clock._idle}
    assert held[0].done() and after.done() and after.done()
    assert len(made) < 12, "fifty tasks and clocks use a handful of events"


def test_what_is_computed_again_has_the_gpus_times_within_the_task():
    cuda = _cuda()
    again = []

    def body():
        begin = cuda.mark()
        again.append((begin, cuda.mark()))

    task = cuda.launch("B0", body, again)
    _finish(cuda, until=task)
    ((begin, end),) = task.again
    assert task.times[0] <= begin <= end <= task.times[1]


def test_a_task_is_a_range_for_profilers_where_that_is_asked_for_even_if_it_fails():
    cuda = _cuda(nvtx=True)
    cuda.launch("F3.1 step 7", lambda: None)
    with pytest.raises(ZeroDivisionError):
        cuda.launch("B3.1 step 7", lambda: 1 // 0)
    assert cuda.gpu.labels == ["F3.1 step 7", "B3.1 step 7"] and cuda.gpu.ranges == 0
    silent = _cuda()
    silent.launch("F0", lambda: None)
    assert silent.gpu.labels == []


def test_a_full_memory_is_told_with_the_ways_out():
    cuda = _cuda()

    def full():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(MemoryError, match=r"full in F4 step 2.*in_flight.*recompute.*Tried to allocate 2.00 GiB"):
        cuda.launch("F4 step 2", full)


def test_memory_that_grows_is_told_once():
    cuda = _cuda()
    cuda.memory.landed(cuda.memory.buffer(4096), 128, 4096)
    assert cuda.grown() == "", "the first look has nothing to compare with"
    cuda.memory.landed(cuda.memory.buffer(4096), 128, 4096)
    assert cuda.grown().startswith("1 new block")
    assert cuda.grown() == ""
    assert cuda.peak_bytes() == 8192


class _Untold(Staged):
    """Forgets to let the copy wait for the task."""

    def _copy_out(self, buffer, target, source):
        buffer.waits = True
        self._gpu.copy(target, source, self._outward)


def test_a_copy_that_does_not_wait_for_its_task_is_found_to_race_with_it():
    def untold(cuda):
        return _Untold(cuda.gpu, compute=cuda.compute, inward=cuda.inward, outward=cuda.outward)

    for make, races in ((_staged, False), (untold, True)):
        cuda = _cuda(messages=make)
        output = cuda.launch("F0", lambda: torch.ones(16)).result()
        buffer = cuda.memory.buffer(64)
        if races:
            with pytest.raises(RaceError, match="reads what is written"):
                cuda.memory.store(output, buffer, 0)
        else:
            cuda.memory.store(output, buffer, 0)


def test_a_slot_that_is_written_while_a_task_reads_it_is_found_to_race_with_it():
    for waits in (True, False):
        cuda = _cuda()
        memory, buffer = cuda.memory, cuda.memory.buffer(64)
        buffer.host.fill_(1)
        landed = memory.landed(buffer, 0, 64)
        _finish(cuda, until=landed)
        value = memory.load(buffer, 0, ("float32", (16,), False, ()))
        task = cuda.launch("B0", lambda value=value: value + 1)
        if waits:
            _finish(cuda, until=task)
            memory.landed(buffer, 0, 64)
        else:
            with pytest.raises(RaceError, match="writes what is read"):
                memory.landed(buffer, 0, 64)


def test_a_task_that_reads_what_has_not_landed_is_found_to_race_with_the_copy():
    cuda = _cuda()
    buffer = cuda.memory.buffer(64)
    cuda.memory.landed(buffer, 0, 64)
    value = cuda.memory.load(buffer, 0, ("float32", (16,), False, ()))
    with pytest.raises(RaceError, match="reads what is written"):
        cuda.launch("F0", lambda: value + 1)


def test_a_stream_that_is_ordered_behind_another_does_not_race_with_it():
    cuda = _cuda()
    source, side = torch.zeros(8), cuda.gpu.stream()
    cuda.launch("F0", lambda: source.add_(1))
    with pytest.raises(RaceError):
        cuda.gpu.copy(torch.zeros(8), source, side)
    cuda.order(side, cuda.after())
    target = torch.zeros(8)
    cuda.gpu.copy(target, source, side)
    cuda.gpu.synchronize()
    assert torch.equal(target, torch.ones(8))
