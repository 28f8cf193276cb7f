"""How a rank waits: spin, then yield the core, then sleep, so that waiting ranks do not slow computing ones.

On a cluster every rank has its cores and spins; on a laptop with more ranks than cores the waiting must sleep.
"""

import os
import time
from collections.abc import Callable

from hpcpipe.device.sleeping import sleep_precisely
from hpcpipe.runtime.clock import now

_SPINS = {"spin": 1 << 62, "yield": 50, "sleep": 20}
_YIELDS = 20
_WAKING = 50e-6  # what a sleep may take too long
_FIRST_SLEEP = 20e-6

LONGEST_SLEEP, LONGEST_SLEEP_EMULATED = 500e-6, 200e-6
"""Seconds; every look takes a core from a rank that computes, but emulated ranks leave the cores to each other."""


def choose_poll(setting: str, *, sharing_ranks: int) -> str:
    """Return `setting`, or for `auto` what fits the cores this rank may use and the ranks that share them."""
    if setting != "auto":
        return setting
    cores = len(os.sched_getaffinity(0))
    if cores < sharing_ranks:
        return "sleep"
    return "spin" if sharing_ranks == 1 or cores >= 2 * sharing_ranks else "yield"


class Waiting:
    """Call `idle` after every poll that found nothing and `busy` after one that did.

    `longest_sleep` (s) bounds how late an arrival is noticed where the rank sleeps.
    """

    def __init__(self, mode: str, *, longest_sleep: float = LONGEST_SLEEP) -> None:
        if mode == "sleep":
            sleep_precisely()
        self._mode = mode
        self._longest_sleep = longest_sleep
        self._spins = _SPINS[mode]
        self._empty = 0
        self._sleep = _FIRST_SLEEP
        self.beside: Callable[[], None] | None = None
        """Called whenever there is nothing else to do; must be quick and never wait."""

    def busy(self) -> None:
        """Start over: the next wait begins with spinning."""
        self._empty = 0
        self._sleep = _FIRST_SLEEP

    def idle(self, due: int | None = None) -> None:
        """Wait a little, longer the longer nothing has come, but not past `due` (ns) where that is known."""
        if self.beside is not None:
            self.beside()
        self._empty += 1
        if self._empty <= self._spins:
            return
        if self._mode == "yield" or self._empty <= self._spins + _YIELDS:
            os.sched_yield()
            return
        time.sleep(self._sleep if due is None else max(0.0, min(self._sleep, (due - now()) * 1e-9)))
        self._sleep = min(2 * self._sleep, self._longest_sleep)

    def during(self, due: int | None) -> None:
        """Wait a little for a task that runs; where its end is known there is nothing to hurry for before."""
        if due is None or self._mode != "sleep":
            self.idle(due)
            return
        left = (due - now()) * 1e-9 - _WAKING
        if left > 0:
            time.sleep(min(LONGEST_SLEEP, left))
