"""Which schedule suits what was measured: one chunk a rank or two, follow an order or take what is ready.

Two comparisons; the figures in them come from simulation (docs/schedules.md) and are no more exact than a tenth or two.
"""

from typing import Literal, NamedTuple

from hpcpipe.plan.profile import Profile

STEADY = 0.15
"""Below this spread of task times, or of delays in forwards, looking ahead wins more than taking what is ready."""


class Advice(NamedTuple):
    """What to set for `hint = "critical"` at equal memory."""

    chunks: int
    dispatch: Literal["fixed", "ready"]


def advise(profile: Profile) -> Advice:
    """Return the better of two chunks in a V and one, and of following the order and readiness.

    Two chunks halve the bubble of the fill but send twice as many messages, each in reach of half the work: they win as
    long as a message is on its way, as root mean square, for less than a stage's forward of one micro-batch. An order
    looks ahead, readiness adapts: the order wins as long as task times deviate by less than 15 % from their mean, and
    delays by less than 15 % of such a forward.
    """
    rms = float(profile.delay) if profile.delay_rms is None else profile.delay_rms
    steady = profile.spread < STEADY and profile.delay_deviation < STEADY * profile.forward
    return Advice(2 if rms < profile.forward else 1, "fixed" if steady else "ready")
