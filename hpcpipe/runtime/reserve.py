"""How large the messages of one edge may be so that they fit its slots: what both of its ends have seen, agreed unsaid.

Shapes may vary, and nobody need know the largest beforehand. A message that does not fit its slot comes apart from it;
both ends know its size then, and from the second step after on slots of that size are there for it. Not earlier: a
sender is in step n + 2 only when the receiver has begun step n + 1 (its last gradients, or activations, of step n + 1
come from there), and the receiver makes its slots larger when it begins a step. So they agree without a message.
"""

_AGREED_AFTER = 2


class Reserve:
    """One end's view of the edge; the other end's is the same. `size` is in bytes of a whole message."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._seen: dict[int, int] = {}

    def note(self, step: int, size: int) -> None:
        """Note a message of a step that did not fit."""
        self._seen[step] = max(size, self._seen.get(step, 0))

    def at(self, step: int) -> int:
        """Return what the slots hold at least when messages of the step come; steps must not go back."""
        if self._seen:
            for seen in [seen for seen in self._seen if seen + _AGREED_AFTER <= step]:
                self.size = max(self.size, _rounded(self._seen.pop(seen)))
        return self.size


def _rounded(size: int) -> int:
    """Return `size` or up to an eighth more, so that sizes that creep up do not make new slots every step."""
    grain = 1 << max(6, size.bit_length() - 4)
    return -(-size // grain) * grain
