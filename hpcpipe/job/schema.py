"""The tables and keys of a job file as typed, frozen sections; the defaults and limits of single values stand here.

What several values must satisfy together is in checks.py. Every key does something: what no code obeys is not accepted.
The keys of a table may depend on its `kind`; then it is one section a kind (VARIANTS).
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PrivateAttr

from hpcpipe.job import values
from hpcpipe.job.checkpoint import Checkpoint
from hpcpipe.job.datafile import expanded
from hpcpipe.job.datasets import DATASETS, ImageText, OwnData, SyntheticData, Text, Tokens
from hpcpipe.job.device import Device, Emulated, Processor
from hpcpipe.job.faults import Fault
from hpcpipe.job.injected import Compute, Network, NoCompute, NoNetwork
from hpcpipe.job.models import MODELS, Gpt, LanguageModel, Llama, OwnModel, SyntheticModel, Vlm
from hpcpipe.job.optimizer import Optimizer
from hpcpipe.job.precision import Precision
from hpcpipe.job.section import Rooted, Section
from hpcpipe.job.slurm import Slurm
from hpcpipe.job.tune import Tune
from hpcpipe.job.values import Cap, Chunks, Count, HintName, Megabytes, Seed, Slots, Split, Tried
from hpcpipe.plan import Order, Peaks, Placement, Task, check_order, make_hint
from hpcpipe.plan.hints import FAMILIES, SPLIT, placement_of
from hpcpipe.plan.hints.table import Table, read_table
from hpcpipe.plan.schedule import FROM_FILE

Name = Annotated[str, AfterValidator(values.folder_name)]
Collectives = Literal["mpi", "nccl"]
Folder = Annotated[Path, BeforeValidator(values.to_path), PlainSerializer(str)]


CHUNKS_OF_A_REPLICA = 8
"""How many chunks a stage has that is alone in its replica: then an eighth of what is exchanged can hide nowhere."""


class Run(Section):
    """`[job]`: how long, how often to report, and where the run's folder goes."""

    name: Name = Field(description="name of the run's folder (default: the job file's name)", examples=["quickstart"])
    steps: Count = Field(default=100, description="optimizer steps")
    seed: Seed = Field(default=0, description="seed of the parameters and of dropout")
    log_every: Count = Field(default=10, description="steps between two lines of progress")
    hang_timeout: float = Field(
        default=300.0,
        ge=0,
        le=1e7,
        description="seconds without progress on any rank until the run ends as hung; 0: never",
    )
    tensorboard: bool = Field(default=False, description="whether metrics also go to TensorBoard files of the run")
    run_dir: Folder = Field(
        Path("runs"), description="folder of all runs, relative to the current folder", examples=["runs"]
    )


class Parallel(Section):
    """`[parallel]`: the mesh of ranks and the layers of each stage."""

    pipeline: Count = Field(default=1, description="pipeline stages")
    data: Count = Field(default=1, description="replicas of the pipeline")
    tensor: Count = Field(default=1, description="tensor-parallel slices of a stage")
    chunks: Chunks = Field(default="auto", description='virtual stages of a rank, or "auto": as many as the hint wants')
    split: Split = Field(default="auto", description='layers of each virtual stage, or "auto" for even ones')

    @property
    def ranks(self) -> int:
        """How many MPI ranks the job needs."""
        return self.pipeline * self.data * self.tensor


class Batch(Section):
    """`[batch]`: sequences of a step on one replica = microbatches * microbatch_size."""

    microbatches: Count = Field(default=8, description="micro-batches of a step on each replica")
    microbatch_size: Count = Field(default=1, description="sequences of a micro-batch")


class Schedule(Section):
    """`[schedule]`: what ranks the work, and whether it may wait for its turn."""

    hint: HintName = Field(default="critical", description="ranking of the tasks")
    dispatch: Literal["ready", "fixed"] = Field(
        default="ready", description="take what is ready, or wait for the order"
    )
    k: Count = Field(default=1, description="micro-batches of a group of kfkb")
    in_flight: Cap = Field(default="equal-memory", description="cap on forwards minus backwards of a stage")
    stash: Cap = Field(default="equal-memory", description="cap on forwards minus weight gradients of a stage")
    admission: Literal["as-given", "ascending", "descending", "pyramid", "auto"] = Field(
        default="as-given", description="order in which a step's micro-batches enter, by their predicted cost"
    )
    accumulate: Literal["ordered", "arrival"] = Field(
        default="ordered", description="order in which gradients are summed"
    )
    agreement: Literal["common", "propose"] = Field(
        default="common",
        description="what tensor slices tell each other: all that each could run, or its next task alone",
    )

    _table: Table | None = PrivateAttr(default=None)

    @property
    def table(self) -> Table | None:
        """The orders of a hint from a file."""
        return self._table

    def read_table(self, folder: Path) -> None:
        """Read the file that the hint names, if it names one; the loader does it, once.

        Raises
        ------
        ValueError
            What the file holds is no schedule; one sentence a line.
        OSError
            It cannot be read.
        """
        if self.hint.startswith(FROM_FILE):
            path = self.table_path(folder)
            self._table = read_table(path.read_text(encoding="utf-8"))

    def table_path(self, folder: Path) -> Path:
        """Return the path of the file that the hint names; a relative one starts at the job file's folder."""
        return (folder / expanded(self.hint.removeprefix(FROM_FILE))).absolute()


class Comm(Section):
    """`[comm]`: how messages are received and gradients are bucketed."""

    slots: Slots = Field(default="auto", description="receive buffers of an edge")
    poll: Literal["auto", "spin", "yield", "sleep"] = Field(
        default="auto", description="what a rank does between two looks"
    )
    bucket_mb: Megabytes = Field(
        default="auto",
        description='size of a gradient bucket in MB (10^6 bytes), or "auto": by the size of the stage',
    )
    split_allreduce: bool = Field(
        default=True,
        description="whether each bucket goes its own way, or all are reduced, then updated, then gathered",
    )
    check_collectives: bool = Field(
        default=False, description="whether every collective of tensor slices first compares its task on all of them"
    )
    cuda_aware: Tried = Field(
        default="auto", description="whether MPI is given the memory of GPUs: tried out, or as you say"
    )
    dp_collectives: Collectives = Field(
        default="mpi", description="what sums gradients over replicas and shares parameters"
    )
    tp_collectives: Collectives = Field(default="mpi", description="what sums over the tensor slices of a stage")

    @property
    def by_nccl(self) -> list[str]:
        """The keys that ask for NCCL."""
        return [key for key in ("dp_collectives", "tp_collectives") if getattr(self, key) == "nccl"]

    @property
    def bucket_bytes(self) -> int | None:
        """The bytes of a bucket, at least one; None where the size of the stage decides."""
        return None if isinstance(self.bucket_mb, str) else max(1, int(self.bucket_mb * 1e6))


class Variability(Section):
    """`[variability]`: what varies, for experiments; a pure function of seed, step, stage, micro-batch and kind."""

    seed: Seed = Field(default=0, description="seed of all draws")
    compute: Compute = Field(default=NoCompute(model="none"), description="how the times of tasks vary")
    network: Network = Field(default=NoNetwork(model="none"), description="how long messages take")


class Events(Section):
    """`[events]`: the event log."""

    on: bool = Field(default=True, description="whether a log is written")
    flush_every: Count = Field(default=1, description="steps between two flushes")
    compression: Literal["gzip", "lzf", "none"] = Field(default="gzip", description="compression of the log")
    aggregate: Literal["rank", "node"] = Field(default="rank", description="one file for each rank, or for each node")
    required: bool = Field(default=False, description="whether a log that cannot be written ends the run")


class Job(Section):
    """A checked job. The table `[job]` is the attribute `run`; every other table has its own name."""

    run: Run = Field(alias="job")
    model: Gpt | Llama | Vlm | OwnModel | SyntheticModel
    data: Text | Tokens | ImageText | OwnData | SyntheticData
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    schedule: Schedule = Schedule()
    tune: Tune = Tune()
    optimizer: Optimizer = Optimizer()
    precision: Precision = Precision()
    comm: Comm = Comm()
    device: Processor | Device | Emulated = Device()
    variability: Variability = Variability()
    events: Events = Events()
    checkpoint: Checkpoint = Checkpoint()
    slurm: Slurm = Slurm()

    _folder: Path = PrivateAttr(default=Path())
    _warnings: tuple[Fault, ...] = PrivateAttr(default=())

    REQUIRED: ClassVar[tuple[str, ...]] = ("model", "data")

    def to_toml(self) -> str:
        """Return the resolved job: every key with its value, the data's path absolute, loadable from anywhere."""
        import tomli_w

        tables: dict[str, dict[str, Any]] = self.model_dump(by_alias=True)
        if self.schedule.hint.startswith(FROM_FILE):
            tables["schedule"]["hint"] = f"{FROM_FILE}{self.schedule.table_path(self._folder)}"
        for name, section in (("model", self.model), ("data", self.data)):
            if isinstance(section, Rooted):
                tables[name] |= section.absolute_paths()
        return tomli_w.dumps(tables)

    def set_folder(self, folder: Path) -> None:
        """Set where relative paths start; the loader does it, once."""
        self._folder = folder

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """What is allowed and yet known to be slow, with its place."""
        return self._warnings

    def set_warnings(self, warnings: Iterable[Fault]) -> None:
        """Keep the warnings; the loader does it, once."""
        self._warnings = tuple(warnings)

    @classmethod
    def from_resolved(cls, text: str) -> "Job":
        """Return the job of a resolved text, as it stands in a run's directory and log; its data need not be here.

        Raises
        ------
        ValueError
            The text is not one that `to_toml` wrote.
        """
        import tomllib

        job = cls.model_validate(tomllib.loads(text))
        job.schedule.read_table(Path())
        return job

    @property
    def chunks(self) -> int:
        """How many virtual stages each rank of the pipeline holds."""
        return self.placement.chunks

    @property
    def placement(self) -> Placement:
        """Where the virtual stages lie."""
        if self.schedule.table is not None:
            return self.schedule.table.placement
        chunks, stages = self.parallel.chunks, self.parallel.pipeline
        given = chunks if isinstance(chunks, int) else None
        hint = self.schedule.hint
        if hint in FAMILIES and (given is None or FAMILIES[hint].chunks in (None, given)):
            return placement_of(hint, stages=stages, chunks=given or FAMILIES[hint].chunks or self._usual_chunks)
        return Placement(stages, given or 1)

    @property
    def _usual_chunks(self) -> int:
        """Two chunks halve the bubble; a hint that can do with one does where layers or `split` are for one.

        The only stage of a replica has no bubble, but behind the work on some chunks the exchanges of others hide.
        """
        stages, split = self.parallel.pipeline, self.parallel.split
        if stages == 1 and self.parallel.data > 1 and isinstance(self.model, LanguageModel | Vlm):
            return len(split) if isinstance(split, tuple) else min(CHUNKS_OF_A_REPLICA, self.model.blocks)
        if FAMILIES[self.schedule.hint].most_chunks is None:
            return 2
        too_few = isinstance(self.model, OwnModel)  # how many layers it has is known when it is made
        too_few = too_few or (isinstance(self.model, LanguageModel | Vlm) and self.model.blocks < 2 * stages)
        for_one = isinstance(split, tuple) and len(split) != 2 * stages
        return 1 if stages == 1 or too_few or for_one else 2

    @property
    def splits(self) -> bool:
        """Whether the backward is split, so that weight gradients are tasks of their own."""
        table = self.schedule.table
        return self.schedule.hint in SPLIT if table is None else table.split

    @property
    def has_norm(self) -> bool:
        """Whether ranks tell each other about their gradients before any of them updates parameters."""
        settings = self.optimizer
        asked = settings.clip != "off" or settings.nonfinite != "late-stop" or self.precision.dynamic_scale
        return asked and not isinstance(self.device, Emulated)

    @property
    def gathers_early(self) -> bool:
        """Whether a part of the parameters is gathered in gaps between the sums of a backward (plan/exchanges.py).

        It pays where one backward ends the step and updates wait for nothing else.
        """
        return not self.has_norm and self.parallel.pipeline == 1 and self.batch.microbatches == 1

    def orders(self) -> tuple[tuple[Task, ...], ...]:
        """Return the order of every stage; none where the hint is a rule."""
        if self.schedule.table is not None:
            return self.schedule.table.orders
        if self.schedule.hint not in FAMILIES:
            return ()
        stages, microbatches, chunks = self.parallel.pipeline, self.batch.microbatches, self.chunks
        hint, k = self.schedule.hint, self.schedule.k if FAMILIES[self.schedule.hint].takes_k else None
        hints = [
            make_hint(hint, stage=stage, stages=stages, microbatches=microbatches, k=k, chunks=chunks)
            for stage in range(stages)
        ]
        return tuple(hint.tasks for hint in hints if isinstance(hint, Order))

    def peaks(self) -> Peaks:
        """Return what every stage holds at most when it follows the order, in forwards of a chunk."""
        orders, microbatches = self.orders(), self.batch.microbatches
        return check_order(orders, placement=self.placement, microbatches=microbatches, split=self.splits)

    @property
    def sha256(self) -> str:
        """The digest of the resolved job's text."""
        return sha256(self.to_toml().encode()).hexdigest()


TABLES: dict[str, type[Section]] = {
    "job": Run,
    "model": Gpt,
    "data": Text,
    "parallel": Parallel,
    "batch": Batch,
    "schedule": Schedule,
    "tune": Tune,
    "optimizer": Optimizer,
    "precision": Precision,
    "comm": Comm,
    "device": Device,
    "variability": Variability,
    "events": Events,
    "checkpoint": Checkpoint,
    "slurm": Slurm,
}
"""The sections by the name of their table."""

VARIANTS: dict[str, dict[str, type[Section]]] = {
    "model": MODELS,
    "data": DATASETS,
    "device": {"auto": Device, "cpu": Processor, "cuda": Device, "emulated": Emulated},
}
"""The sections of the tables whose keys depend on their `kind`; TABLES holds the usual one."""
