"""Durations of all tasks of a step at once, for the compiled simulator: the draws of plan's models over whole arrays.

Every duration is the one that its task gets by itself, to the nanosecond: hashes, logarithms and exponentials are
computed in the native module with the libm that Python's `math` uses; only products, sums and rounding are numpy's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hpcpipe import _simulate
from hpcpipe.plan import Kind, Placement, Task
from hpcpipe.plan.variability import Compute, HeavyTail, Jitter, Lognormal, MicrobatchCost, Steady, Straggler

Floats = NDArray[np.float64]
_MASK = (1 << 64) - 1
_KINDS = (Kind.F, Kind.B, Kind.W)


def vary_durations(
    usual: ArrayLike, model: Compute, *, placement: Placement, microbatches: int, seed: int = 0, step: int = 0
) -> NDArray[np.int64]:
    """Return round(model.vary(usual)) of every task, in ns.

    Parameters
    ----------
    usual
        ns, [stage][kind: F, B, W][chunk][microbatch]; an axis may have length 1, and the last may be left out.
    model
        Those of plan are computed for all tasks together; any other is asked for one task after the other,
        which takes about a microsecond or more a task.

    Returns
    -------
    array
        With the axes of `usual`; those along which durations differ have their full length.
    """
    base = np.asarray(usual, dtype=np.float64)
    base = base.reshape(base.shape + (1,) * (4 - base.ndim))
    draws = _Draws(placement, microbatches, seed, step)
    vary = _MODELS.get(type(model), _one_by_one)
    varied = vary(model, base, draws)
    return np.rint(varied).astype(np.int64)


class _Draws:
    """The draws of one step; arrays over [stage][F, B, W][chunk][microbatch], where W has B's draws."""

    def __init__(self, placement: Placement, microbatches: int, seed: int, step: int) -> None:
        self.shape = placement.stages, len(_KINDS), placement.chunks, microbatches
        self.seed = seed
        self.step = step

    def uniforms(self, *tail: int) -> Floats:
        return self._tasks(_simulate.uniforms(self.seed & _MASK, self._places(), tail))

    def lognormals(self, sigma: float) -> Floats:
        return self._tasks(_simulate.lognormals(self.seed & _MASK, self._places(), sigma))

    def microbatch_lognormals(self, sigma: float) -> Floats:
        coordinates = [self._step(), np.arange(self.shape[3])]
        return _simulate.lognormals(self.seed & _MASK, coordinates, sigma).reshape(1, 1, 1, -1)

    def _step(self) -> NDArray[np.int64]:
        return np.array([self.step & _MASK], dtype=np.uint64).view(np.int64)

    def _places(self) -> list[NDArray[np.int64]]:
        stages, _, chunks, microbatches = self.shape
        return [self._step(), *map(np.arange, (stages, microbatches, chunks)), np.array([Kind.F, Kind.B])]

    @staticmethod
    def _tasks(drawn: Floats) -> Floats:
        """Bring [step][stage][microbatch][chunk][F, B] into the order of durations."""
        return drawn[0][..., [0, 1, 1]].transpose(0, 3, 2, 1)


def _steady(_model: Steady, base: Floats, _draws: _Draws) -> Floats:
    return base


def _lognormal(model: Lognormal, base: Floats, draws: _Draws) -> Floats:
    return base * draws.lognormals(model.sigma)


def _heavy_tail(model: HeavyTail, base: Floats, draws: _Draws) -> Floats:
    long = draws.uniforms() < model.probability
    return base * np.where(long, model.factor, 1.0) / (1.0 + model.probability * (model.factor - 1.0))


def _straggler(model: Straggler, base: Floats, draws: _Draws) -> Floats:
    here = np.arange(draws.shape[0]) == model.stage
    return base * np.where(here, model.factor, 1.0).reshape(-1, 1, 1, 1)


def _jitter(model: Jitter, base: Floats, draws: _Draws) -> Floats:
    delay = model.alpha * np.maximum(model.base, base) * (0.5 + draws.uniforms(4))
    return np.where(draws.uniforms(3) < model.probability, base + delay, base)


def _microbatch_cost(model: MicrobatchCost, base: Floats, draws: _Draws) -> Floats:
    factors = draws.microbatch_lognormals(model.sigma)
    if model.stages is None:
        return base * factors
    there = (np.arange(draws.shape[0]) < model.stages).reshape(-1, 1, 1, 1)
    return np.where(there, base * factors, base)


def _one_by_one(model: Compute, base: Floats, draws: _Draws) -> Floats:
    usual = np.broadcast_to(base, draws.shape)
    varied = np.empty(draws.shape)
    for where in np.ndindex(draws.shape):
        stage, kind, chunk, microbatch = where
        task = Task(_KINDS[kind], microbatch, chunk)
        varied[where] = model.vary(usual[where].item(), seed=draws.seed, step=draws.step, stage=stage, task=task)
    return varied


_MODELS: dict[type, Callable[[Any, Floats, _Draws], Floats]] = {
    Steady: _steady,
    Lognormal: _lognormal,
    HeavyTail: _heavy_tail,
    Straggler: _straggler,
    Jitter: _jitter,
    MicrobatchCost: _microbatch_cost,
}
