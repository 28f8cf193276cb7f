"""Long jobs that are signalled, requeued, preempted and robbed of their nodes, all of them at once.

Each of these stories is mostly waiting, so they are told to Slurm as the first test begins and go on beside the others.
"""

import json
import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from slurm_jobs import JOB

STORIES = {}
CALM = JOB.replace("forward_ms = 5", "forward_ms = 20").replace("backward_ms = 10", "backward_ms = 40")
"""The job with longer steps: many run at a time, and wait for Slurm more than they train."""


class Story:
    """One long job on the cluster and what can be asked of it."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.runs = folder / "runs" / "small"
        self.job, self.environment, self.saves, self.job_id = CALM, {}, False, ""

    def start(self, *sets):
        """Submit the job and wait until it has trained a step."""
        (self.folder / "job.toml").write_text(self.job)
        words = [word for one in ("job.steps=1000000", "job.log_every=1", *sets) for word in ("--set", one)]
        command = (sys.executable, "-m", "hpcpipe", "submit", "job.toml", *words)
        self.job_id = self.cluster.run(*command, cwd=self.folder, environment=self.environment).stdout.strip()
        self.wait_for_steps(restart=0)

    def wait_for_steps(self, *, restart, timeout=110):
        """Wait until this start of the job has trained a step itself."""
        deadline = time.monotonic() + timeout
        while len(self.steps(restart)) <= self.first_step(restart):
            if time.monotonic() > deadline:
                raise AssertionError(f"no step after restart {restart}: {self.state()['JobState']}\n{self.log}")
            time.sleep(0.4)

    def first_step(self, restart):
        """Return how many steps of earlier starts a start of the job has gone on with, as far as it tells."""
        try:
            starts = json.loads((self.runs / f"{self.job_id}-{restart}" / "history.json").read_text())["starts"]
        except FileNotFoundError:  # of one that saves: not yet
            return math.inf if self.saves else 0
        return starts[-1]["first_step"]

    def steps(self, restart):
        """Return the steps that a start of the job has recorded."""
        try:
            lines = (self.runs / f"{self.job_id}-{restart}" / "metrics.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line)["step"] for line in lines]

    def hosts(self, restart):
        """Return the host of each rank in a start of the job, as far as its ranks have met."""
        try:
            ranks = json.loads((self.runs / f"{self.job_id}-{restart}" / "ranks.json").read_text())
        except FileNotFoundError:
            return []
        return [rank["host"] for rank in ranks]

    def state(self):
        return self.cluster.job(self.job_id)

    def do(self, *command):
        """Run a command of Slurm, with the job's id at its end."""
        self.cluster.run(*command, self.job_id)

    @property
    def log(self):
        path = self.runs / f"slurm-{self.job_id}.out"
        return path.read_text() if path.exists() else ""

    def end(self):
        """Return what there is to look at, and see to it that the job does not go on."""
        facts = SimpleNamespace(log=self.log, steps=self.steps(0), **self.state())
        facts.hosts = [self.hosts(0), self.hosts(1)]
        facts.latest = (self.runs / "latest").resolve().name.partition("-")[2]
        self.cluster.run("scancel", self.job_id, check=False)
        return facts


def story(tell=None, *, on="cluster"):
    """Have it told together with the others, on the cluster that this fixture gives."""
    if tell is None:
        return lambda tell: story(tell, on=on)
    STORIES[tell.__name__] = (tell, on)
    return tell


def end_of(*names):
    """Let a test look at what `it` was at the end of each of these stories."""
    return pytest.mark.parametrize("it", names, indirect=True)


def tell_all(names, find_cluster, make_folder):
    """Begin to tell stories; return by name what each will have found."""
    places = {name: (find_cluster(STORIES[name][1]), make_folder(name)) for name in names}

    def tell(name):
        one = Story(*places[name])
        try:
            return STORIES[name][0](one) or one.end()
        finally:
            if one.job_id:
                one.cluster.run("scancel", one.job_id, check=False)

    pool = ThreadPoolExecutor(max(1, len(places)), "story")
    return {name: pool.submit(tell, name) for name in places}
