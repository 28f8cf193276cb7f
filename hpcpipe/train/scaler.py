"""The loss scale: how much losses are multiplied by, so that small gradients do not vanish in fp16.

Every rank holds one and gives it the same verdicts, so all ranks agree without a message of its own.
"""

GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000
"""As torch.amp.GradScaler's defaults (Micikevicius et al., arXiv 1710.03740, section 3.2)."""


class LossScale:
    """A number, constant or dynamic: doubled after `interval` finite steps, halved after one that was not finite."""

    def __init__(self, value: float = 1.0, *, dynamic: bool = False, interval: int = INTERVAL) -> None:
        self.value = value
        self.dynamic = dynamic
        self._interval = interval
        self.good_steps = 0
        """Finite steps since the last change; with `value` all that a resumed run needs."""

    def update(self, *, finite: bool) -> None:
        """Take the verdict on a step; the next one is scaled accordingly."""
        if not self.dynamic:
            return
        if not finite:
            self.value *= BACKOFF
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self._interval:
            self.value *= GROWTH
            self.good_steps = 0
