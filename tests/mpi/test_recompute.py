"""Recomputed blocks: the same bits under every schedule, with dropout too, and their time told apart in the log."""

import pytest
import torch
from layers import by_layer, disturb
from training import load, on_two, train_on

from hpcpipe.plan import Kind

BASE = ("job.steps=2", "model.layers=8", "model.dropout=0.1", "batch.microbatches=4", "batch.microbatch_size=1")


@pytest.mark.mpi(min_size=2)
def test_recomputed_blocks_leave_the_bits_and_show_within_their_backwards(comm, tmp_path):
    on_two(comm)
    stages = min(comm.size, 4)
    bits = None
    runs = [("1f1b", "fixed", '"none"', 0), ("bf", "ready", '"all"', 8), ("zb-h1", "ready", "[[1, 5]]", None)]
    runs += [("zbv", "ready", '"all"', 8)]
    for seed, (hint, dispatch, recompute, blocks) in enumerate(runs):
        settings = [*BASE, f"parallel.pipeline={stages}", f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"']
        settings.append(f"model.recompute={recompute}")
        rows = []
        result = train_on(comm, tmp_path, *settings, before_step=_watch(rows, disturb(seed)))
        found = by_layer(comm, result, load(tmp_path, *settings))
        again = [row for row in rows if row[0] is Kind.F and row[-1].get("flags") == 2]
        backwards = {(row[1], row[2], row[3]): row[5:7] for row in rows if row[0] is Kind.B}
        for _, step, microbatch, chunk, _, begin, end, _ in again:
            start, stop = backwards[step, microbatch, chunk]
            assert start <= begin <= end <= stop
        total = comm.allreduce(len(again))
        assert blocks is None or total == 2 * 4 * blocks
        assert (total > 0) == (blocks != 0)
        if comm.rank == 0:
            bits = bits or (result[0], found)
            assert result[0] == bits[0]
            assert all(torch.equal(found[name], bits[1][name]) for name in found), hint


def _watch(rows, disturb_too):
    """Return what keeps the rows of the log, and disturbs."""

    def before_step(step, rank):
        disturb_too(step, rank)
        if step == 0:
            event = rank.engine._recorder.event

            def keep(*row, **more):
                rows.append((*row, more))
                event(*row, **more)

            rank.engine._recorder.event = keep

    return before_step
