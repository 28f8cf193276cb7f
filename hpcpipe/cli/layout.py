"""Show how a job lies on its ranks: for the dry run and at the start of a run."""

from typing import TYPE_CHECKING

from rich.table import Table

from hpcpipe.cli.terminal import make_console
from hpcpipe.train import Layout

if TYPE_CHECKING:
    from hpcpipe.job import Job


def describe(job: "Job", layout: Layout) -> str:
    """Return in two lines what is about to be trained."""
    sizes, schedule = job.parallel, job.schedule
    parameters = sum(layout.num_parameters(stage) for stage in range(sizes.pipeline))
    shape = f"{sizes.pipeline} stages" + (f" x {sizes.data} replicas" if sizes.data > 1 else "")
    return (
        f"{job.run.name}: {parameters / 1e6:.2f} M parameters on {sizes.ranks} ranks ({shape}); dispatch "
        f"{schedule.dispatch}, hint {schedule.hint}\n"
        f"{job.batch.microbatches} micro-batches of {job.batch.microbatch_size} sequences a step and replica, at most "
        f"{' '.join(map(str, layout.bounds))} in flight by stage"
    )


def print_layout(job: "Job") -> None:
    """Print the stages: layers, parameters, micro-batches in flight and what they stash at the boundary."""
    layout = Layout.of(job)
    table = Table(title=f"{job.run.name}: {job.parallel.ranks} ranks, nothing started")
    for heading in ("stage", "layers", "parameters", "share of cost", "in flight at most", "input stash MiB"):
        table.add_column(heading, justify="right")
    costs = [sum(layout.layers[i].cost for i in stage) for stage in layout.stages]
    for number, (stage, cost, bound) in enumerate(zip(layout.stages, costs, layout.bounds, strict=True)):
        first, last = layout.layers[stage.start].name, layout.layers[stage.stop - 1].name
        table.add_row(
            str(number),
            first if first == last else f"{first} … {last}",
            f"{layout.num_parameters(number):,}",
            f"{cost / sum(costs):.1%}",
            str(bound),
            f"{bound * layout.boundary_bytes / 2**20:.1f}",
        )
    make_console().print(table)
