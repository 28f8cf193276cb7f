"""A GPU that is none and finds races: whoever touches memory must be ordered behind whoever touched it before.

Tasks compute on the CPU at once, because what comes behind them may need their values, but they are over late and by
chance, as copies are made late and by chance. What orders them is what orders CUDA: a stream, an event that another
stream waits for, an event that the host has seen. The rest is a race and raises one, even where it ends well here. The
same rules as torch.cuda._sanitizer, which needs a GPU.
"""

import random
from collections import deque
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

GARBAGE = 0xA5


class RaceError(AssertionError):
    """Two touch the same memory and nothing orders them, one of them writing."""


class Operation:
    """Something in a stream: its place there, what it does if that is not done at once, and what comes before it."""

    def __init__(self, stream, body, known):
        self.stream, self.body, self.known = stream, body, known
        self.place = stream.enqueued = stream.enqueued + 1
        stream.queue.append(self)

    def carry_out(self):
        body, self.body = self.body, None
        if body is not None:
            body()


class RacingStream:
    def __init__(self, name):
        self.name = name
        self.queue = deque()
        self.enqueued = self.passed = 0
        self.known = {}
        """How far other streams are when this one comes to what is enqueued next."""

    def __repr__(self):
        return self.name


class RacingEvent:
    def __init__(self, gpu):
        self._gpu = gpu
        self.stream, self.place, self.known, self.time = None, 0, {}, None

    def record(self, stream):
        gpu = self._gpu
        gpu.learn(stream.known, gpu.host)
        operation = Operation(stream, lambda: setattr(self, "time", gpu.tick()), dict(stream.known))
        self.stream, self.place, self.known, self.time = stream, operation.place, operation.known, None

    def query(self):
        self._gpu.go_on()
        if not self.passed:
            return False
        self._gpu.learn(self._gpu.host, {**self.known, self.stream: self.place})
        return True

    @property
    def passed(self):
        return self.stream is None or self.stream.passed >= self.place

    def elapsed_ns(self, later):
        assert self.passed and later.passed, "an event's time was asked before it had passed"
        return later.time - self.time


class _Seen(TorchDispatchMode):
    """Tells a GPU what memory the operations of torch read and write."""

    def __init__(self, gpu, stream):
        super().__init__()
        self._gpu, self._stream = gpu, stream

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        keywords = keywords or {}
        result = function(*arguments, **keywords)
        mine = set()
        for index, argument in enumerate(function._schema.arguments):
            value = arguments[index] if index < len(arguments) else keywords.get(argument.name)
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for each in tree_leaves(value):
                if isinstance(each, torch.Tensor):
                    mine.add(_memory(each))
                    self._gpu.touch(each, self._stream, writes=writes)
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and _memory(each) not in mine:  # perhaps where another was freed
                self._gpu.touch(each, self._stream, writes=True)
        return result


class RacingGpu:
    """The methods of hpcpipe.device.gpu.Gpu. `pace` is how likely a stream goes on by one operation when asked."""

    name = "a GPU that is none"

    def __init__(self, seed, *, pace=0.3):
        self.device = torch.device("cpu")
        self._random, self._pace = random.Random(seed), pace
        self.streams = []
        self.host = {}
        """How far the streams are as the host has seen."""
        self._touched = {}
        self._time = 0
        self.ranges, self.labels = 0, []
        self.blocks, self._pinned = [], []  # kept: what is of another pool must not lie where these lay

    def stream(self):
        self.streams.append(RacingStream(f"stream {len(self.streams)}"))
        return self.streams[-1]

    def event(self):
        return RacingEvent(self)

    def use(self, stream):
        self.current = stream

    @contextmanager
    def on(self, stream):
        before, self.current = getattr(self, "current", None), stream
        self.learn(stream.known, self.host)
        self._bring(stream)
        try:
            with _Seen(self, stream):
                yield
        finally:
            self.current = before

    def wait(self, stream, event):
        self.learn(stream.known, self.host)
        if event.stream is None:
            return
        self.learn(stream.known, {**event.known, event.stream: event.place})
        Operation(stream, None, dict(stream.known))

    def copy(self, target, source, stream):
        assert target.shape == source.shape and target.dtype == source.dtype
        self.learn(stream.known, self.host)
        operation = Operation(stream, lambda: _copy(target, source), dict(stream.known))
        self.touch(source, stream, writes=False, place=operation.place)
        self.touch(target, stream, writes=True, place=operation.place)

    def empty(self, num_bytes):
        self.blocks.append(self._made(num_bytes))
        return self.blocks[-1]

    def pinned(self, num_bytes):
        self._pinned.append(self._made(num_bytes))
        return self._pinned[-1]

    def _made(self, num_bytes):
        """Return memory of a pool of its own, whatever lay there on this host before."""
        with _disable_current_modes():
            made = torch.full((num_bytes,), GARBAGE, dtype=torch.uint8)
        self._touched.pop(_memory(made), None)
        return made

    def lend(self, tensor, stream):
        pass

    def counters(self):
        from hpcpipe.device.gpu import Counters

        return Counters(sum(map(len, self.blocks)), len(self.blocks), 0)

    def synchronize(self):
        for stream in self.streams:
            while stream.queue:
                self.go_on()

    def range_push(self, label):
        self.ranges += 1
        self.labels.append(label)

    def range_pop(self):
        self.ranges -= 1

    def tick(self):
        self._time += 1000
        return self._time

    def learn(self, known, more):
        for stream, place in more.items():
            known[stream] = max(place, known.get(stream, 0))

    def touch(self, tensor, stream, *, writes, place=None):
        """Note that memory is read or written where the stream is, and look for a race."""
        place = stream.enqueued + 1 if place is None else place
        wrote, read = self._touched.get(_memory(tensor), (None, {}))
        for what, (other, there) in [("written", wrote)] if wrote else []:
            self._judge(what, other, there, stream, writes)
        if writes:
            for other, there in read.items():
                self._judge("read", other, there, stream, writes)
        self._touched[_memory(tensor)] = ((stream, place), {}) if writes else (wrote, {**read, stream: place})

    def seen_by_host(self, tensor):
        """Return whether whatever was done with memory is over, as far as the host has seen."""
        wrote, _ = self._touched.get(_memory(tensor), (None, {}))
        return wrote is None or self.host.get(wrote[0], 0) >= wrote[1]

    def _judge(self, what, other, there, stream, writes):
        if other is not stream and stream.known.get(other, 0) < there:
            raise RaceError(
                f"{stream} {'writes' if writes else 'reads'} what is {what} in {other}, and nothing orders them"
            )

    def go_on(self):
        """Let a few operations of streams drawn by chance be over."""
        for stream in self._random.sample(self.streams, len(self.streams)):
            while stream.queue and self._random.random() < self._pace:
                operation = stream.queue[0]
                if any(other.passed < place for other, place in operation.known.items() if other is not stream):
                    break
                operation.carry_out()
                stream.queue.popleft()
                stream.passed = operation.place

    def _bring(self, stream):
        """Carry out the copies that come before what the stream does next, without their being over."""
        places = {**stream.known, stream: stream.enqueued}
        for other, place in places.items():
            for operation in other.queue:
                if operation.place <= place and operation.body is not None and other is not stream:
                    operation.carry_out()


def _memory(tensor):
    return tensor.untyped_storage().data_ptr() if tensor.numel() else 0


def _copy(target, source):
    with torch.no_grad():
        target.copy_(source)
