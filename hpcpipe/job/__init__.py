"""Job files: from TOML text to a typed, checked job, with every fault at once and in its place."""

from hpcpipe.job.faults import Fault, JobError
from hpcpipe.job.load import load_job
from hpcpipe.job.schema import Job

__all__ = ["Fault", "Job", "JobError", "load_job"]
