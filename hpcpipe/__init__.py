"""hpcpipe: pipeline-parallel training over MPI, and what scripts and notebooks use of it.

Importing it starts nothing and reads little: each name is imported when it is first asked for. What does not stand in
`__all__` is hpcpipe's own and may change with any version.
"""

from typing import TYPE_CHECKING

from hpcpipe.lazy import lazily

if TYPE_CHECKING:
    from hpcpipe.api import Plan, Run, RunFailedError, Simulation, plans, predict, run
    from hpcpipe.job import Fault, Job, JobError, load_job
    from hpcpipe.simulate.costs import Machine
    from hpcpipe.version import __version__

__all__ = [
    "Fault",
    "Job",
    "JobError",
    "Machine",
    "Plan",
    "Run",
    "RunFailedError",
    "Simulation",
    "__version__",
    "load_job",
    "plans",
    "predict",
    "run",
]

__getattr__ = lazily(
    __name__,
    {
        **dict.fromkeys(("Fault", "Job", "JobError", "load_job"), "hpcpipe.job"),
        **dict.fromkeys(("Plan", "Run", "RunFailedError", "Simulation", "plans", "predict", "run"), "hpcpipe.api"),
        "Machine": "hpcpipe.simulate.costs",
        "__version__": "hpcpipe.version",
    },
)


def __dir__() -> list[str]:
    """Return the names of `__all__` too, before they are imported: for completion in notebooks."""
    return sorted({*globals(), *__all__})
