"""The rules over what is ready: who goes first when everything is."""

import pytest

from hpcpipe.plan import Kind, Task, make_hint

READY = [Task(kind, m, c) for kind in (Kind.F, Kind.B, Kind.W) for m in (0, 1) for c in (0, 1)]


def run(name, count):
    hint, ready, order = make_hint(name, stage=0, stages=2, microbatches=2, chunks=2), list(READY), []
    while len(order) < count:
        task = hint.pick(ready)
        ready.remove(task)
        hint.started(task)
        order.append(str(task))
    return " ".join(order)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("bf", "B0.1 F0 B1.1 F1 B0 F0.1 B1 F1.1"),
        ("bfw", "B0.1 F0 B1.1 F1 B0 F0.1 B1 F1.1"),
        ("fb", "F0 B0.1 F1 B1.1 F0.1 B0 F1.1 B1"),
        ("b-priority", "B0.1 B1.1 B0 B1 F0 F1 F0.1 F1.1"),
        ("f-priority", "F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1"),
    ],
)
def test_forwards_take_the_smallest_chunk_backwards_the_largest_and_weights_only_fill_in(name, order):
    assert run(name, 12) == order + " W0.1 W0 W1.1 W1"


def test_after_a_weight_gradient_a_new_round_begins():
    hint = make_hint("bfw", stage=0, stages=2, microbatches=4)
    hint.started(Task(Kind.B, 0))
    hint.started(Task(Kind.W, 0))
    assert hint.pick([Task(Kind.F, 1), Task(Kind.B, 1)]).kind is Kind.B
