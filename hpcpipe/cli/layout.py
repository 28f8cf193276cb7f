"""Show how a job lies on its ranks: for the dry run and at the start of a run."""

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from hpcpipe.cli.terminal import make_console, print_table, refuse, say
from hpcpipe.train import Layout
from hpcpipe.train.batches import problem_of_records
from hpcpipe.train.layout import problem_with_caps

if TYPE_CHECKING:
    from hpcpipe.job import Job


def describe(job: "Job", layout: Layout) -> str:
    """Return in two lines what is about to be trained."""
    sizes, schedule = job.parallel, job.schedule
    shape = f"{sizes.pipeline} stages" + (f" x {sizes.data} replicas" if sizes.data > 1 else "")
    shape += f" x {sizes.tensor} slices" if sizes.tensor > 1 else ""
    chunks = layout.schedule.placement.chunks
    shape += f", {chunks} chunks each" if chunks > 1 else ""
    unit = "sequences" if hasattr(job.data, "seq_len") else "records" if job.data.kind == "image-text" else "samples"
    if layout.layers:
        what = f"{sum(layout.num_parameters(stage) for stage in range(sizes.pipeline)) / 1e6:.2f} M parameters"
        size = f" of {job.batch.microbatch_size} {unit}"
    else:
        what, size = "an emulated model (times are drawn, nothing is computed)", ""
    held = "forwards of a chunk" if chunks > 1 else "of them"
    return (
        f"{job.run.name}: {what} on {sizes.ranks} ranks ({shape}); dispatch {schedule.dispatch}, hint {schedule.hint}\n"
        f"{job.batch.microbatches} micro-batches{size} a step and replica, at most "
        f"{' '.join(map(str, layout.bounds))} {held} in flight by stage"
        + "".join(f"\nnote: {notice}" for notice in layout.notices)
    )


def print_layout(job: "Job") -> None:
    """Print the stages: layers, parameters, micro-batches in flight and what they stash at the boundary."""
    if problem := problem_of_records(job) or problem_with_caps(job):
        refuse(problem)
    layout = Layout.of(job)
    chunks = layout.schedule.placement.chunks
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    costs = [sum(layout.layers[i].cost for piece in stage for i in piece) for stage in layout.pieces]
    headings = ["stage", *(["layers", "parameters", "share of cost"] if layout.layers else [])]
    for heading in (*headings, "in flight at most" + (" (chunks)" if chunks > 1 else ""), "input stash MiB"):
        table.add_column(heading, justify="left" if heading == "layers" else "right", no_wrap=True)
    for number, (stage, cost, bound) in enumerate(zip(layout.pieces, costs, layout.bounds, strict=True)):
        cells = [str(number)]
        if layout.layers:
            names = "\n".join(_names(layout, piece) for piece in stage)
            cells += [names, f"{layout.num_parameters(number):,}", f"{cost / sum(costs):.1%}"]
        table.add_row(*cells, str(bound), f"{bound * layout.boundary_bytes / 2**20:.1f}")
    console = make_console()
    console.print(Text(f"{job.run.name}: {job.parallel.ranks} ranks, nothing started", style="bold"))
    print_table(console, table)
    for notice in layout.notices:
        say(f"note: {notice}")


def _names(layout: Layout, piece: range) -> str:
    first, last = layout.layers[piece.start].name, layout.layers[piece.stop - 1].name
    return first if first == last else f"{first} … {last}"
