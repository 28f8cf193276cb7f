"""Exchanges take turns in one order on every replica, whatever the order in which they are asked for."""

from random import Random

import pytest

from hpcpipe.plan import Exchanges, Kind, Task, early_gathers, usual_bucket_bytes


def rs(bucket):
    return Task(Kind.RS, bucket)


def ag(bucket):
    return Task(Kind.AG, bucket)


def test_sums_go_in_the_order_of_the_backward_and_gathers_in_that_of_the_next_forward():
    turns = Exchanges(range(3), at_once=1)
    wanted = [rs(0), rs(1), rs(2), ag(2), ag(1), ag(0)]
    begun = [each for task in wanted for each in turns.ask(task)]
    while len(begun) < len(wanted):
        begun += turns.end(begun[-1])
    assert begun == wanted


def test_what_has_not_its_turn_waits_for_what_was_not_asked_for_yet():
    turns = Exchanges(range(2), at_once=2)
    assert turns.ask(rs(1)) == []
    assert turns.ask(rs(0)) == [rs(0), rs(1)]


def test_no_more_are_under_way_than_may_be():
    turns = Exchanges(range(4), at_once=2)
    assert [turns.ask(rs(bucket)) for bucket in range(4)] == [[rs(0)], [rs(1)], [], []]
    assert turns.end(rs(1)) == [rs(2)]


def test_what_takes_no_turns_begins_at_once_and_takes_no_room():
    turns = Exchanges([1], at_once=1)
    assert turns.ask(rs(1)) == [rs(1)]
    assert turns.ask(rs(0)) == [rs(0)]
    assert turns.ask(Task(Kind.NORM, 0)) == [Task(Kind.NORM, 0)]
    assert turns.end(rs(0)) == []
    assert turns.ask(ag(1)) == []
    assert turns.end(rs(1)) == [ag(1)]


def test_what_is_gathered_early_begins_where_sums_leave_room_and_sums_wait_for_no_gather():
    turns = Exchanges(range(4), at_once=2, early=[1])
    assert turns.ask(rs(0)) + turns.ask(rs(1)) == [rs(0), rs(1)]
    assert turns.end(rs(0)) == turns.end(rs(1)) == []
    assert turns.ask(ag(0)) == [], "its turn is the last"
    assert turns.ask(ag(1)) == [ag(1)]
    assert turns.ask(rs(2)) + turns.ask(rs(3)) == [rs(2), rs(3)]
    assert turns.end(rs(2)) == [] and turns.ask(ag(2)) == []
    assert turns.end(rs(3)) == [] and turns.ask(ag(3)) == [ag(3)], "one gather and this one"
    assert turns.end(ag(1)) == [ag(2)]
    assert turns.end(ag(2)) == [ag(0)]


def test_every_third_of_equal_buckets_is_gathered_early():
    assert early_gathers([1.0] * 12) == [2, 5, 8, 11]
    assert early_gathers([1.0] * 12, share=1 / 2) == [1, 3, 5, 7, 9, 11]
    assert early_gathers([1.0] * 12, share=0.0) == []


def test_no_more_than_a_third_is_gathered_early_whatever_the_sizes():
    random = Random(0)
    for _ in range(50):
        sizes = [random.lognormvariate(0, 2) for _ in range(random.randrange(1, 20))]
        early = early_gathers(sizes)
        assert early == sorted(set(early))
        assert sum(sizes[bucket] for bucket in early) <= sum(sizes) / 3 * 1.001
        assert 0 not in early, "the last one that the next forward needs has the most time"


class Replica:
    """Goes through three steps, bucket by bucket as it happens: RS, then AG, then the next step's RS."""

    def __init__(self, buckets, at_once, early):
        self.turns = Exchanges(range(buckets), at_once=at_once, early=early)
        self.to_ask = [[kind(bucket) for _step in range(3) for kind in (rs, ag)] for bucket in range(buckets)]
        self.waits_for = {}
        self.under_way, self.begun = [], []

    def may_ask(self):
        return [bucket for bucket, left in enumerate(self.to_ask) if left and bucket not in self.waits_for]

    def ask(self, bucket):
        task = self.waits_for[bucket] = self.to_ask[bucket].pop(0)
        self.begin(self.turns.ask(task))

    def end(self, task):
        self.under_way.remove(task)
        del self.waits_for[task.microbatch]
        self.begin(self.turns.end(task))

    def begin(self, tasks):
        self.under_way += tasks
        self.begun += tasks


@pytest.mark.parametrize("seed", range(20))
def test_replicas_that_ask_in_any_order_never_wait_for_each_other_for_ever(seed):
    """An exchange ends when it has begun on both; each replica asks by its own timing."""
    random, buckets = Random(seed), 5
    early = sorted(random.sample(range(buckets), seed % 4))
    pair = [Replica(buckets, at_once=1 + seed % 3, early=early) for _ in range(2)]
    while any(each.may_ask() or each.under_way or each.waits_for for each in pair):
        moves = [(each.ask, bucket) for each in pair for bucket in each.may_ask()]
        ended = [task for task in pair[0].under_way if task in pair[1].under_way]
        assert moves or ended, "nobody has anything to ask for and nothing ends: they wait for ever"
        if ended and (random.random() < 0.5 or not moves):
            for each in pair:
                each.end(ended[0])
        else:
            move, bucket = random.choice(moves)
            move(bucket)
    for kind in (Kind.RS, Kind.AG):
        begun = [[task for task in each.begun if task.kind is kind] for each in pair]
        assert begun[0] == begun[1]
        assert len(begun[0]) == 3 * buckets


@pytest.mark.parametrize(
    ("stage_mb", "replicas", "bucket_mb"),
    [
        (25.6, 2, 1.6),  # sixteen buckets
        (6.4, 2, 0.4),
        (1.6, 2, 0.25),  # smaller ones would start longer than they travel
        (6.4, 64, 8.0),  # and the more so the more replicas there are
        (0.0, 4, 0.5),
        (4000.0, 2, 25.0),  # larger ones would save nothing
        (4000.0, 1000, 25.0),
        (25.6, 1, 25.0),  # nothing is exchanged
    ],
)
def test_a_stage_has_sixteen_buckets_unless_start_ups_say_otherwise(stage_mb, replicas, bucket_mb):
    assert usual_bucket_bytes(round(stage_mb * 1e6), replicas) == round(bucket_mb * 1e6)
