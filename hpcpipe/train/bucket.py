"""One fusion bucket: parameters and gradients in flat buffers, reduced, updated and gathered in shards.

A rank reduces every gradient but updates only its shard of the parameters, between the two halves of the all-reduce; so
optimizer state is sharded for free. A tied parameter has copies on other stages: they are further owners of its shards.
"""

from collections.abc import Callable, Sequence

import torch

from hpcpipe.collective import Group, padded_length
from hpcpipe.collective.backend import Backend, Collective, Native, Progress
from hpcpipe.plan import Kind
from hpcpipe.train.precision import Types

MakeOptimizer = Callable[[torch.nn.Parameter, bool], torch.optim.Optimizer]

MASTER = "master"
"""The name among the states of a parameter's fp32 values, where it computes in another type."""


class Bucket:
    """Some parameters, which become views of one flat buffer, and the gradients of each of their uses in another.

    The gradient is summed over the replicas for each use by itself, then over the uses on this rank, then over the
    group. So two uses of a parameter give the same bits wherever they lie, and every value is updated in one place.

    Parameters take the type that is computed in. Gradients are added in fp32, and the values are kept in fp32 as well,
    but only this rank's shard of them, with the optimizer's state (Micikevicius et al., arXiv 1710.03740).

    Parameters
    ----------
    uses
        The parameters once for each place where they are used, in fp32; all uses share one memory.
    replicas
        Those of this stage.
    group
        The ranks of this pipeline whose stages hold further uses, this one included; None if there is no other.
    types
        What is computed in, and what gradients travel in between replicas; between stages it is fp32.
    progress
        Who works on what is under way between replicas, as in `CollectiveBucket`.
    backend
        Where the buffers lie, and what sums and shares them.

    Attributes
    ----------
    shard
        The part of `values` that this rank updates; `shard_parameter` is what `optimizer` updates.
    """

    def __init__(
        self,
        uses: Sequence[Sequence[torch.nn.Parameter]],
        *,
        replicas: Group,
        make_optimizer: MakeOptimizer,
        group: Group | None = None,
        types: Types = Types(),  # noqa: B008 - a tuple
        progress: Progress = "poll",
        backend: Backend | None = None,
    ) -> None:
        backend = Native() if backend is None else backend
        self._pack, self._square_sum, device = backend.pack, backend.square_sum, backend.device
        self.parameters = uses[0]
        self.numel = sum(p.numel() for p in uses[0])
        count = replicas.comm.size
        length = padded_length(self.numel, count * (1 if group is None else group.comm.size))
        whole = torch.zeros(length, device=device)
        self._pack([p.detach() for p in uses[0]], whole[: self.numel], accumulate=False)
        self.values = whole.to(types.compute)
        self._gradients = [torch.zeros(length, device=device) for _ in uses]
        for use in uses:
            begin = 0
            for parameter in use:
                parameter.data = self.values[begin : begin + parameter.numel()].view_as(parameter)
                begin += parameter.numel()
        narrow = types.reduce != torch.float32 and count > 1
        self._wires = [torch.zeros_like(each, dtype=types.reduce) if narrow else each for each in self._gradients]
        shared = (*self._wires, self.values) if count > 1 else ()
        in_turn = group is None and len(uses) == 1  # tied ones wait for other stages, and take no turns
        self._over_replicas = [backend.bucket(replicas, each, in_turn=in_turn, progress=progress) for each in shared]
        self._part = part = self._over_replicas[0].shard if self._over_replicas else slice(0, length)
        self._sum = self._gradients[0][part]
        self._others = [gradient[part] for gradient in self._gradients[1:]]
        values = self.values[part]
        self._over_group: list[Collective] = []
        if group is not None:
            self._over_group = [backend.bucket(group, each, in_turn=False) for each in (self._sum, values)]
        shard = self._over_group[0].shard if self._over_group else slice(0, len(values))
        self._gradient = self._sum[shard]
        self._shard = values[shard]
        self._master = self._shard if types.compute == torch.float32 else whole[part][shard].clone()
        self.shard = slice(part.start + shard.start, part.start + shard.stop)
        self.shard_parameter = parameter = torch.nn.Parameter(self._master)
        parameter.grad = self._gradient
        self.optimizer = make_optimizer(parameter, uses[0][0].ndim >= 2)
        self._phases: list[Callable[[], list[Collective]]] = []
        self._running: list[Collective] = []
        self._square: float | torch.Tensor = 0.0

    @property
    def shared(self) -> bool:
        """Whether other ranks have a part in it."""
        return bool(self._over_replicas or self._over_group)

    def add(self, use: int, gradients: Sequence[torch.Tensor], *, begin: int, first: bool) -> None:
        """Add a micro-batch's gradients of one use of some parameters, from element `begin` on, or start a new sum."""
        end = begin + sum(gradient.numel() for gradient in gradients)
        self._pack(gradients, self._gradients[use][begin:end], accumulate=not first)

    def start(self, kind: Kind) -> None:
        """Start the reduce-scatter of the gradients or the all-gather of the parameters."""
        if kind is Kind.RS:
            self._phases = [self._reduce_over_replicas, self._reduce_over_group]
        else:
            self._phases = [self._gather_over_group, self._gather_over_replicas]
        self._running = self._phases.pop(0)()

    def test(self) -> bool:
        """Advance what was started; return whether it is done."""
        while True:
            self._running = [each for each in self._running if not each.test()]
            if self._running or not self._phases:
                return not self._running
            self._running = self._phases.pop(0)()

    def measure(self) -> None:
        """Take the squared norm of this rank's shard of the whole gradient; once a step, when it is reduced."""
        if not self.shared:
            self._add_uses()
        self._square = self._square_sum(self._gradient)

    @property
    def square_norm(self) -> float | torch.Tensor:
        """The squared norm of this rank's shard of the gradient when it was measured last, loss scale and all.

        On a GPU it is a scalar there; whoever makes a number of it waits for it.
        """
        return self._square

    def update(self, rate: float, factor: float) -> None:
        """Take one optimizer step on this rank's shard with its gradient times `factor`."""
        if factor != 1.0:
            self._gradient.mul_(factor)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        if self._master is not self._shard:
            self._shard.copy_(self._master)

    def num_bytes(self, kind: Kind) -> int:
        """Return the size of the flat buffer that a reduce-scatter or an all-gather works on."""
        return self.values.nbytes if kind is Kind.AG else self._wires[0].nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of what is kept for updates alone: the optimizer's state, and fp32 values where there are others."""
        return sum(tensor.nbytes for tensor in self.states.values())

    @property
    def states(self) -> dict[str, torch.Tensor]:
        """What is kept for updates, by name: an element for each of the shard's, or a scalar for all of them."""
        (state,) = self.optimizer.state.values() or ({},)
        states = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        return states if self._master is self._shard else {**states, MASTER: self._master}

    def free(self) -> None:
        """Free the persistent requests."""
        for each in (*self._over_replicas, *self._over_group):
            each.free()

    def _add_uses(self) -> None:
        for other in self._others:
            self._sum += other

    def _reduce_over_replicas(self) -> list[Collective]:
        reducing = self._over_replicas[:-1]
        for each, wire, gradient in zip(reducing, self._wires, self._gradients, strict=False):
            if wire is not gradient:
                wire.copy_(gradient)
            each.start_reduce_scatter()
        return reducing

    def _reduce_over_group(self) -> list[Collective]:
        for wire, gradient in zip(self._wires, self._gradients, strict=True):
            if wire is not gradient:
                gradient[self._part] = wire[self._part]
        self._add_uses()
        for each in self._over_group[:1]:
            each.start_reduce_scatter()
        return self._over_group[:1]

    def _gather_over_group(self) -> list[Collective]:
        for each in self._over_group[1:]:
            each.start_all_gather()
        return self._over_group[1:]

    def _gather_over_replicas(self) -> list[Collective]:
        for each in self._over_replicas[-1:]:
            each.start_all_gather()
        return self._over_replicas[-1:]
