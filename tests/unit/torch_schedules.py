"""torch.distributed.pipelining's schedules without processes: their classes over stages that only know their numbers.

For tests that exchange tables with torch; nothing here computes, and no process group is made.
"""

import csv
import io
from types import SimpleNamespace

from torch.distributed.pipelining import schedules

SINGLE = ("Schedule1F1B", "ScheduleGPipe")


def local_stages(ranks, chunks):
    """Return what rank 0 passes to a schedule; schedules work out the orders of all ranks from it."""
    return [
        SimpleNamespace(
            stage_index=chunk * ranks,
            num_stages=ranks * chunks,
            group_size=ranks,
            group_rank=0,
            is_first=chunk == 0,
            is_last=False,
            submod=None,
            has_backward=True,
        )
        for chunk in range(chunks)
    ]


def table_of(name, ranks, chunks, microbatches):
    """Return the table that torch writes for a schedule, as `_dump_csv` does."""
    stages = local_stages(ranks, chunks)
    schedule = getattr(schedules, name)(stages[0] if name in SINGLE else stages, microbatches)
    text = io.StringIO()
    writer = csv.writer(text)
    for rank in sorted(schedule.pipeline_order):
        writer.writerow(schedule.pipeline_order[rank])
    return text.getvalue()


def load(path, ranks, chunks, microbatches):
    """Return torch's schedule of a table in a file, read, validated and with its messages, ready to be executed."""
    schedule = schedules._PipelineScheduleRuntime(local_stages(ranks, chunks), microbatches)
    schedule._load_csv(path, format="compute_only")
    return schedule


def simulated(schedule):
    """Return what each rank computes, in order, in torch's own simulation of work and messages.

    Raises where they wait for each other. Actions on parameters, which that simulation does not know, are left out.
    """
    with_messages = {
        rank: [
            action
            for action in actions
            if action.is_compute_op or action.computation_type.value[:4] in ("SEND", "RECV")
        ]
        for rank, actions in schedule.pipeline_order_with_comms.items()
    }
    ran = schedules._simulate_comms_compute(
        with_messages, lambda stage: schedule.stage_index_to_group_rank[stage], schedule._num_stages
    )
    return [
        [str(action) for action in ran[rank] if action is not None and action.is_compute_op] for rank in sorted(ran)
    ]
