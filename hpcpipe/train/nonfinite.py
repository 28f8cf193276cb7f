"""Where in a step the first NaN or infinity arises: the step is computed once more, and every layer is looked at.

The step before has to be undone or left out, so that parameters are those that it began with; a normal step pays
nothing for all this. It must not know what is done about it (guard.py).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import isfinite
from typing import Any, NamedTuple

import torch
from torch import nn

from hpcpipe.plan import Kind, Task
from hpcpipe.runtime.stage import Gradients
from hpcpipe.runtime.structure import tensors_of
from hpcpipe.train.layout import Layout
from hpcpipe.train.rank import Rank

_PARAMETER, _FORWARD, _LOSS, _BACKWARD = range(4)


class Finding(NamedTuple):
    """What was not finite. The least of all ranks' findings is where it began.

    `layer` counts layers from the begin of the chain, in a backward from its end; `microbatch` counts those of all
    replicas, -1 for none; `turn` is the order within a layer, that of the forward or its opposite.
    """

    phase: int
    microbatch: int
    layer: int
    turn: int
    what: str

    def __str__(self) -> str:
        if self.phase == _PARAMETER:
            return f"{self.what} held it before the step began"
        return f"it arose in micro-batch {self.microbatch}, in {self.what}"


def find_nonfinite(rank: Rank, layout: Layout, step: int) -> Finding | None:
    """Compute a step's gradients again (collective) and return this rank's first finding, None if all is finite."""
    watch = _Watch(rank, layout, step)
    with ExitStack() as hooks:
        watch.attach(hooks)
        rank.repeat(step)
    watch.look_at_losses()
    return min(watch.findings, default=None)


class _Watch:
    def __init__(self, rank: Rank, layout: Layout, step: int) -> None:
        self.findings: list[Finding] = []
        self._rank = rank
        self._first_microbatch = rank.place.replica * rank.groupings.at(step).microbatches
        self._num_layers = len(layout.layers)
        self._microbatch, self._looks = -1, True
        self._turn = 0
        pieces = layout.pieces[rank.place.stage]
        numbers = [number for piece in pieces for number in piece]
        self._layers = [
            (number, layout.layers[number].name, m) for number, m in zip(numbers, rank.modules, strict=True)
        ]
        self._names: dict[int, tuple[int, str]] = {}
        for number, name, module in self._layers:
            for inner, parameter in module.named_parameters():
                self._names.setdefault(id(parameter), (number, f"{name}.{inner}"))
                if not _is_finite(parameter):
                    self.findings.append(Finding(_PARAMETER, -1, number, 0, f"the parameter {name}.{inner}"))

    def attach(self, hooks: ExitStack) -> None:
        """Look at what every module returns and at every gradient until `hooks` are closed."""
        for number, name, module in self._layers:
            for inner, each in module.named_modules():
                where = f"{name}.{inner}" if inner else name
                hooks.callback(each.register_forward_hook(self._after_forward(number, where)).remove)
        start = self._rank.stage.start

        def noting(step: int, task: Task, received: Any) -> Any:
            self._microbatch, self._turn = self._first_microbatch + task.microbatch, 0
            self._looks = task.kind is Kind.F
            return start(step, task, received)

        self._rank.stage.start = noting  # type: ignore[method-assign]
        hooks.callback(lambda: setattr(self._rank.stage, "start", start))
        for parameters, accumulator in zip(self._rank.parameters, self._rank.accumulators, strict=True):
            accumulator.watch = self._at_sink(parameters)
            hooks.callback(setattr, accumulator, "watch", None)

    def look_at_losses(self) -> None:
        """Add the losses that are not finite."""
        for microbatch, loss in self._rank.losses().items():
            if not isfinite(loss):
                found = Finding(_LOSS, self._first_microbatch + microbatch, self._num_layers, 0, f"the loss ({loss})")
                self.findings.append(found)

    def _after_forward(self, number: int, where: str) -> Callable[[nn.Module, Any, Any], None]:
        def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if not self._looks:  # a forward that is repeated within a backward
                return
            self._turn += 1
            if not all(_is_finite(tensor) for tensor in tensors_of(output)):
                what = f"the forward of {where}"
                self.findings.append(Finding(_FORWARD, self._microbatch, number, self._turn, what))

        return look

    def _at_sink(self, parameters: Sequence[nn.Parameter]) -> Callable[[int, Gradients], None]:
        def look(microbatch: int, gradients: Gradients) -> None:
            for index, (parameter, gradient) in enumerate(zip(parameters, gradients, strict=True)):
                if gradient is not None and not _is_finite(gradient):
                    number, name = self._names[id(parameter)]
                    place = self._first_microbatch + microbatch, self._num_layers - number, -index
                    self.findings.append(Finding(_BACKWARD, *place, f"the gradient of {name}"))

        return look


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() and not tensor.is_complex():
        return True
    return bool(torch.isfinite(tensor).all())
