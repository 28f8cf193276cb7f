"""Steps of this package's engine and fusion buckets over layers that only take their time.

The stage is emulated; gradients, buckets, updates, messages and the engine are those that train.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch

from hpcpipe.bench.dataparallel.models import Model
from hpcpipe.device import Emulated, Running
from hpcpipe.plan import Kind, Limits, Placement, Schedule, StagePlan, Task
from hpcpipe.runtime import Engine, Mailbox, Mesh, Waiting, now
from hpcpipe.runtime.waiting import LONGEST_SLEEP_EMULATED
from hpcpipe.train.buckets import FusionBuckets
from hpcpipe.train.rank import NoLog

if TYPE_CHECKING:
    from hpcpipe.runtime import World

RATE = 1e-3
"""Of SGD, here and in the other ways."""

_NS = 1e6  # a millisecond


class Ours:
    """One replica of a model, a chunk a layer; made and freed by all ranks together."""

    def __init__(self, world: "World", model: Model, *, bucket_bytes: int) -> None:
        self._mesh = Mesh(world.comm, pipeline=1, data=world.size, tensor=1)
        parameters = [[torch.nn.Parameter(torch.zeros(shape)) for shape in layer.shapes] for layer in model.layers]
        self._buckets = FusionBuckets(
            parameters,
            comm=self._mesh.replicas,
            bucket_bytes=bucket_bytes,
            make_optimizer=lambda parameter, _decay: torch.optim.SGD([parameter], lr=RATE),
            rate=lambda _step: RATE,
            gathers_early=True,
            progress="auto",  # as between hosts in a training
        )
        chunks = len(model.layers)
        limits = (Limits(chunks),)
        self._schedule = Schedule("bf", "ready", Placement(1, chunks), microbatches=1, limits=limits)
        device = Emulated(now)
        self._mailbox = Mailbox(self._mesh, inlets=(), payload_bytes=0, memory=device)
        self._engine = Engine(
            stage=_Stage(device, model, parameters, self._buckets),
            mailbox=self._mailbox,
            buckets=self._buckets,
            recorder=NoLog(),
            waiting=Waiting("sleep", longest_sleep=LONGEST_SLEEP_EMULATED),
            number=0,
            make_plan=self._plan,
        )
        self._step = 0

    def run(self, steps: int) -> list[int]:
        """Run so many steps and return when each ended, in ns; gathers end beside the next step, but for the last."""
        ends = []
        for _ in range(steps):
            ends.append(self._engine.run_step(self._step).end)
            self._step += 1
        self._engine.gather()
        return ends

    @property
    def fused_bytes(self) -> int:
        """How large one bucket of all parameters would be."""
        return self._buckets.fused_bytes

    def rebucket(self, bucket_bytes: int) -> None:
        """Cut the buckets anew (collective), as a training does between two steps."""
        self._buckets.rebucket(bucket_bytes)

    def free(self) -> None:
        """Free the requests and the communicators (collective)."""
        self._engine.drain()
        self._mailbox.free()
        self._buckets.free()
        self._mesh.free()

    def _plan(self, _step: int, gathering: Collection[int]) -> StagePlan:
        buckets = self._buckets
        return self._schedule.stage_plan(
            0, buckets=buckets.chunks, replicated=True, gathering=gathering, eager=buckets.early
        )


class _Stage:
    """Layers that take their time, and hand over gradients before their backward is over."""

    has_data = False

    def __init__(
        self, device: Emulated, model: Model, parameters: list[list[torch.nn.Parameter]], buckets: FusionBuckets
    ) -> None:
        self._device, self._buckets = device, buckets
        self._forward_ns = [round(ms * _NS) for ms in model.forward_ms()]
        most = torch.zeros(max(layer.numel for layer in model.layers))  # what a backward makes is soon given back
        self._gradients = [_parts(most, of_layer) for of_layer in parameters]

    def load(self, step: int) -> None:
        """Read nothing."""

    def start(self, step: int, task: Task, received: object) -> Running:
        """Start the forward or backward of a layer; what a backward hands over takes its time besides."""
        del step, received
        if task.kind is Kind.F:
            return self._device.run(self._forward_ns[task.chunk])
        self._buckets.add(task.chunk, self._gradients[task.chunk], first=True)
        return self._device.run(2 * self._forward_ns[task.chunk])


def _parts(flat: torch.Tensor, parameters: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Return views of a flat tensor in the shapes of some parameters."""
    lengths = [parameter.numel() for parameter in parameters]
    parts = flat[: sum(lengths)].split(lengths)
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
