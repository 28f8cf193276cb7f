"""One fusion bucket: parameters and gradients in flat buffers, reduced, updated and gathered in shards.

A rank reduces every gradient but updates only its shard of the parameters, between the two halves of the all-reduce; so
optimizer state is sharded for free. A tied parameter has copies on other stages: they are further owners of its shards.
"""

from collections.abc import Callable, Sequence

import torch

from hpcpipe.collective import CollectiveBucket, Group, pack, padded_length
from hpcpipe.plan import Kind

MakeOptimizer = Callable[[torch.nn.Parameter, bool], torch.optim.Optimizer]


class Bucket:
    """Some parameters, which become views of one flat buffer, and the gradients of each of their uses in another.

    The gradient is summed over the replicas for each use by itself, then over the uses on this rank, then over the
    group. So two uses of a parameter give the same bits wherever they lie, and every value is updated in one place.

    Parameters
    ----------
    uses
        The parameters once for each place where they are used; all uses share one memory.
    replicas
        Those of this stage.
    group
        The ranks of this pipeline whose stages hold further uses, this one included; None if there is no other.
    """

    def __init__(
        self,
        uses: Sequence[Sequence[torch.nn.Parameter]],
        *,
        replicas: Group,
        make_optimizer: MakeOptimizer,
        group: Group | None = None,
    ) -> None:
        self.numel = sum(p.numel() for p in uses[0])
        count = replicas.comm.size
        length = padded_length(self.numel, count * (1 if group is None else group.comm.size))
        self.values = torch.zeros(length)
        self._gradients = [torch.zeros(length) for _ in uses]
        pack([p.detach() for p in uses[0]], self.values[: self.numel], accumulate=False)
        for use in uses:
            begin = 0
            for parameter in use:
                parameter.data = self.values[begin : begin + parameter.numel()].view_as(parameter)
                begin += parameter.numel()
        self._over_replicas = [
            CollectiveBucket(replicas, each) for each in (*self._gradients, self.values) if count > 1
        ]
        part = self._over_replicas[0].shard if self._over_replicas else slice(0, length)
        self._sum = self._gradients[0][part]
        self._others = [gradient[part] for gradient in self._gradients[1:]]
        values = self.values[part]
        self._over_group = [] if group is None else [CollectiveBucket(group, each) for each in (self._sum, values)]
        shard = self._over_group[0].shard if self._over_group else slice(0, len(values))
        self._gradient = self._sum[shard]
        parameter = torch.nn.Parameter(values[shard])
        parameter.grad = self._gradient
        self._optimizer = make_optimizer(parameter, uses[0][0].ndim >= 2)
        self._phases: list[Callable[[], list[CollectiveBucket]]] = []
        self._running: list[CollectiveBucket] = []
        self.square_norm = 0.0

    @property
    def shared(self) -> bool:
        """Whether other ranks have a part in it."""
        return bool(self._over_replicas or self._over_group)

    def add(self, use: int, gradients: Sequence[torch.Tensor], *, first: bool) -> None:
        """Add a micro-batch's gradients of one use, or start a new sum with them."""
        pack(gradients, self._gradients[use][: self.numel], accumulate=not first)

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

    def update(self, rate: float) -> None:
        """Take one optimizer step on this rank's shard."""
        if not self.shared:
            self._add_uses()
        self.square_norm = float(torch.linalg.vector_norm(self._gradient, dtype=torch.float64)) ** 2
        self._optimizer.param_groups[0]["lr"] = rate
        self._optimizer.step()

    def free(self) -> None:
        """Free the persistent requests."""
        for each in (*self._over_replicas, *self._over_group):
            each.free()

    def _add_uses(self) -> None:
        for other in self._others:
            self._sum += other

    def _reduce_over_replicas(self) -> list[CollectiveBucket]:
        for each in self._over_replicas[:-1]:
            each.start_reduce_scatter()
        return self._over_replicas[:-1]

    def _reduce_over_group(self) -> list[CollectiveBucket]:
        self._add_uses()
        for each in self._over_group[:1]:
            each.start_reduce_scatter()
        return self._over_group[:1]

    def _gather_over_group(self) -> list[CollectiveBucket]:
        for each in self._over_group[1:]:
            each.start_all_gather()
        return self._over_group[1:]

    def _gather_over_replicas(self) -> list[CollectiveBucket]:
        for each in self._over_replicas[-1:]:
            each.start_all_gather()
        return self._over_replicas[-1:]
