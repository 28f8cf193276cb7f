"""How large the messages of one edge may be so that they fit its slots: what both of its ends know, agreed unsaid.

Shapes may vary, and nobody need know the largest beforehand. A message that does not fit its slot comes apart from it;
both ends know its size then, and from the second step after on slots of that size are there for it. Not earlier: a
sender is in step n + 2 only when the receiver has begun step n + 1 (its last gradients, or activations, of step n + 1
come from there), and the receiver makes its slots larger when it begins a step. So they agree without a message.

The same holds where all ranks change the size of micro-batches. When both ends hear before step n + 1 that step n + 2
has other messages, the receiver makes room for the larger of both as it begins step n + 1, before any sender can be in
step n + 2; and it makes its slots smaller as it begins step n + 2, when it has all messages of step n + 1.
"""

from hpcpipe.plan.by_step import ByStep

_AGREED_AFTER = 2


class Reserve:
    """One end's view of the edge; the other end's is the same. Sizes are in bytes of a whole message.

    Parameters
    ----------
    planned
        What messages need at most as far as that is known, by step; shared by the edges that it holds for.
    """

    def __init__(self, planned: ByStep[int]) -> None:
        self._planned = planned
        self._seen: dict[int, int] = {}
        self._last = -1, planned.at(0)

    def note(self, step: int, size: int) -> None:
        """Note a message of a step that did not fit."""
        self._seen[step] = max(size, self._seen.get(step, 0))

    def at(self, step: int) -> int:
        """Return what the slots hold at least when messages of the step come; steps must not go back beyond one.

        What was seen before the planned size changed counts no longer: it was of another size of micro-batches.
        """
        if self._last[0] == step:
            return self._last[1]
        oldest, since = self._planned.since(step - 1), self._planned.since(step)
        self._seen = {seen: size for seen, size in self._seen.items() if seen >= oldest}
        known = [_rounded(size) for seen, size in self._seen.items() if since <= seen <= step - _AGREED_AFTER]
        self._last = step, max([self._planned.at(step), *known])
        return self._last[1]


def _rounded(size: int) -> int:
    """Return `size` or up to an eighth more, so that sizes that creep up do not make new slots every step."""
    grain = 1 << max(6, size.bit_length() - 4)
    return -(-size // grain) * grain
