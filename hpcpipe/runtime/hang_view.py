"""From the states of all ranks of a job that stands still to the first rank that is stuck and what it waits for.

Most ranks of such a job only wait for another one; whoever waits for nobody, or for what has been sent, is where it
began. Pure: it knows states as JSON holds them (snapshot.py), neither files nor processes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

State = Mapping[str, Any]


class Stuck(NamedTuple):
    """A rank and what is wrong with it, to follow its name in a sentence."""

    rank: int
    what: str


def first_stuck(states: Mapping[int, State], silent: Mapping[int, str]) -> Stuck:
    """Return where the hang began.

    Parameters
    ----------
    states
        Of the ranks that answer.
    silent
        What is known of each rank that does not.
    """
    if silent:
        rank = min(silent)
        others = len(silent) - 1
        return Stuck(rank, silent[rank] + (f" (and {others} more do not answer)" if others else ""))
    by_age = sorted(states, key=lambda rank: (states[rank]["step"], states[rank]["phase"] == "sums", rank))
    judges = (_stands_in_code, _lacks_what_was_sent, _waits_for_its_device, _waits_for_replicas, _waits_for_slices)
    for judge in judges:
        for rank in by_age:
            if (what := judge(states[rank], states)) is not None:
                return Stuck(rank, what)
    rank = by_age[0]
    return Stuck(rank, _waits(states[rank]))


def _stands_in_code(state: State, _: Mapping[int, State]) -> str | None:
    """Describe a rank whose loop does not come round, but for one that waits for others' part in a sum."""
    if state["turns"] or state["phase"] == "sums" or state.get("in_collective"):
        return None
    running = state["running"]
    if running is not None:
        return f"runs {running['task']} of step {state['step']} for {running['for_s']:.0f} s, at {state['at']}"
    return f"stands at {state['at']} ({state['phase']}, step {state['step']})"


def _lacks_what_was_sent(state: State, states: Mapping[int, State]) -> str | None:
    if state["phase"] != "step":
        return None
    for wait in state["waits_for"]:
        peer = states.get(wait["peer"])
        if peer is None or peer["step"] < state["step"]:
            continue
        if peer["step"] > state["step"] or wait["made_by"] in peer["finished"]:
            full = any(
                (inlet["feeds"], inlet["chunk"], inlet["posted"]) == (wait["task"][0], wait["chunk"], 0)
                for inlet in state["receives"]
            )
            why = "no receive slot is free for it" if full else "the message is lost or its link is"
            return f"{_waits_for(wait, state)}, which has sent it: {why}"
    return None


def _waits_for_its_device(state: State, _: Mapping[int, State]) -> str | None:
    running = state["running"]
    if running is None or state.get("in_collective"):
        return None
    return f"waits for its device to finish {running['task']} of step {state['step']}, for {running['for_s']:.0f} s"


def _waits_for_replicas(state: State, _: Mapping[int, State]) -> str | None:
    if not state["collectives"]:
        return None
    return f"waits for {', '.join(state['collectives'])} of step {state['step']} with its replicas"


def _waits_for_slices(state: State, _: Mapping[int, State]) -> str | None:
    if state.get("in_collective"):
        return f"waits in {state['in_collective']} of step {state['step']} for the other slices of its stage"
    agreement = state.get("agreement")
    if agreement is None or state["phase"] != "step":
        return None
    return (
        f"waits in step {state['step']} for the other slices of its stage to agree to "
        f"{', '.join(agreement['proposes']) or 'its next task'}"
    )


def _waits(state: State) -> str:
    if state["phase"] == "sums":
        return f"waits for the sums over all ranks after step {state['step']}"
    if state["waits_for"]:
        return _waits_for(state["waits_for"][0], state)
    return f"waits in step {state['step']} for none of the other ranks, at {state['at']}"


def _waits_for(wait: Mapping[str, Any], state: State) -> str:
    chunk = f" for chunk {wait['chunk']}" if wait["chunk"] else ""
    return (
        f"waits for {wait['what']} of micro-batch {wait['microbatch']}{chunk} in step {state['step']} from "
        f"rank {wait['peer']}"
    )
