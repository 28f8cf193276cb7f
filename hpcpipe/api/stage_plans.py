"""What each stage of a job would hold and do, before anything starts; what the dry run prints, as data."""

from dataclasses import dataclass

from hpcpipe.api.job_files import JobLike, Settings, as_file, as_words
from hpcpipe.job import load_job
from hpcpipe.plan import Limits, Task


@dataclass(frozen=True, slots=True)
class Plan:
    """One stage of a job.

    Parameters
    ----------
    stage
        Its number, from 0.
    layers
        Names of its layers in the order in which they run, one tuple a chunk; empty on an emulated device.
    num_parameters
        Parameters of the whole stage, before tensor-parallel slices share them; 0 on an emulated device.
    order
        The tasks of a step in the order of the hint, F3 a forward of micro-batch 3, B0.1 a backward of chunk 1; None
        where the hint is a rule (`bf`) that has no order before the step.
    limits
        The caps on forwards of a chunk, None where there is none: a fixed order bounds itself.
    in_flight
        The most forwards of a chunk without their backward that the stage can have, by cap or order.
    boundary_bytes
        Size in bytes of the activation that crosses to the next virtual stage for one micro-batch.
    """

    stage: int
    layers: tuple[tuple[str, ...], ...]
    num_parameters: int
    order: tuple[Task, ...] | None
    limits: Limits
    in_flight: int
    boundary_bytes: int


def plans(job: JobLike, overrides: Settings = ()) -> tuple[Plan, ...]:
    """Return what every stage of a job holds and in which order its tasks are ranked.

    Counts parameters without giving them memory. The orders are those of 1F1B, kFkB (arXiv 2303.01675), interleaved
    (arXiv 2104.04473), zero bubble (arXiv 2401.10241) and so on; `critical` makes its own from measured times, so here
    it is the one with which a run begins.

    Parameters
    ----------
    job
        A checked job or the path of a job file.
    overrides
        Values to change, `{"schedule.hint": "zbv"}` or `["schedule.hint=zbv"]`.

    Raises
    ------
    JobError
        Every fault of the job.
    ValueError
        A cap cannot be met, or the data cannot be read where the model's sizes depend on them.
    """
    from hpcpipe.train import Layout

    with as_file(job) as path:
        checked = load_job(path, as_words(overrides))
        layout = Layout.of(checked)
        orders = checked.orders()
        return tuple(
            Plan(
                stage=stage,
                layers=tuple(tuple(layout.layers[i].name for i in piece) for piece in layout.pieces[stage]),
                num_parameters=layout.num_parameters(stage),
                order=orders[stage] if orders else None,
                limits=layout.schedule.limits[stage],
                in_flight=layout.bounds[stage],
                boundary_bytes=layout.boundary_bytes,
            )
            for stage in range(checked.parallel.pipeline)
        )
