"""The tables and keys of a job file as typed, frozen sections; the defaults and limits of single values stand here.

What several values must satisfy together is in checks.py. Every key does something: what no code obeys is not accepted.
"""

from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, PrivateAttr

from hpcpipe.job import values
from hpcpipe.job.datafile import resolve
from hpcpipe.job.values import Betas, Count, InFlight, Seed, Slots, Split

Name = Annotated[str, AfterValidator(values.folder_name)]
FileText = Annotated[str, AfterValidator(values.text)]
Folder = Annotated[Path, BeforeValidator(values.to_path), PlainSerializer(str)]


class Section(BaseModel):
    """A table of the job file: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Run(Section):
    """`[job]`: how long, how often to report, and where the run's folder goes."""

    name: Name = Field(description="name of the run's folder (default: the job file's name)", examples=["quickstart"])
    steps: Count = Field(default=100, description="optimizer steps")
    seed: Seed = Field(default=0, description="seed of the parameters and of dropout")
    log_every: Count = Field(default=10, description="steps between two lines of progress")
    run_dir: Folder = Field(
        Path("runs"), description="folder of all runs, relative to the current folder", examples=["runs"]
    )


class Model(Section):
    """`[model]`: a GPT's sizes."""

    kind: Literal["gpt"] = Field(description="kind of model", examples=["gpt"])
    layers: Count = Field(description="transformer blocks", examples=[4])
    dim: Count = Field(description="width of the residual stream", examples=[128])
    heads: Count = Field(description="attention heads, which divide dim", examples=[4])
    context: Count = Field(description="longest sequence in tokens", examples=[128])
    vocab_size: Count = Field(default=256, description="number of different tokens")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations that are dropped in training")


class Data(Section):
    """`[data]`: the text to train on; every byte is a token."""

    kind: Literal["text"] = Field(description="kind of data", examples=["text"])
    path: FileText = Field(
        description='file, from the job file\'s folder on, or "package:PKG/FILE", a file of an installed package',
        examples=["corpus.txt"],
    )
    seq_len: Count = Field(description="tokens of a sequence (default: the model's context)", examples=[128])
    seed: Seed = Field(default=0, description="seed of the order in which sequences are drawn")

    _folder: Path = PrivateAttr(default=Path())

    def set_folder(self, folder: Path) -> None:
        """Set where a relative path starts; the loader does it, once."""
        self._folder = folder

    @property
    def resolved_path(self) -> Path:
        """The file to read, absolute."""
        return resolve(self.path, folder=self._folder)


class Parallel(Section):
    """`[parallel]`: the mesh of ranks and the layers of each stage."""

    pipeline: Count = Field(default=1, description="pipeline stages")
    data: Count = Field(default=1, description="replicas of the pipeline")
    tensor: Annotated[Count, AfterValidator(values.tensor)] = Field(default=1, description="tensor slices of a stage")
    split: Split = Field(default="auto", description='layers of each stage, or "auto" for even stages')

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

    hint: Literal["gpipe", "1f1b", "bf"] = Field(default="bf", description="ranking of the tasks")
    dispatch: Literal["ready", "fixed"] = Field(
        default="ready", description="take what is ready, or wait for the order"
    )
    in_flight: InFlight = Field(default="equal-memory", description="cap on forwards minus backwards of a stage")
    accumulate: Literal["ordered", "arrival"] = Field(
        default="ordered", description="order in which gradients are summed"
    )


class Optimizer(Section):
    """`[optimizer]`: the update rule and its learning rate over time."""

    name: Literal["adamw", "sgd"] = Field(default="adamw", description="update rule")
    lr: float = Field(default=1e-3, gt=0, description="highest learning rate")
    schedule: Literal["constant", "cosine"] = Field(default="constant", description="learning rate after the warm-up")
    warmup: int = Field(default=0, ge=0, le=values.LARGEST, description="steps of linear warm-up")
    betas: Betas = Field(default=(0.9, 0.95), description="decay of AdamW's moments")
    eps: float = Field(default=1e-8, gt=0, description="AdamW's guard against division by zero")
    weight_decay: float = Field(default=0.1, ge=0, description="decoupled weight decay")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="SGD's momentum")


class Comm(Section):
    """`[comm]`: how messages are received and gradients are bucketed."""

    slots: Slots = Field(default="auto", description="receive buffers of an edge")
    poll: Literal["auto", "spin", "yield", "sleep"] = Field(
        default="auto", description="what a rank does between two looks"
    )
    bucket_mb: float = Field(default=25.0, gt=0, description="size of a gradient bucket in MB (10^6 bytes)")


class Device(Section):
    """`[device]`: where stages compute."""

    kind: Literal["auto", "cpu"] = Field(default="auto", description="kind of device")


class Events(Section):
    """`[events]`: the event log."""

    on: bool = Field(default=True, description="whether a log is written")
    flush_every: Count = Field(default=1, description="steps between two flushes")
    compression: Literal["gzip", "lzf", "none"] = Field(default="gzip", description="compression of the log")


class Job(Section):
    """A checked job. The table `[job]` is the attribute `run`; every other table has its own name."""

    run: Run = Field(alias="job")
    model: Model
    data: Data
    parallel: Parallel = Parallel()
    batch: Batch = Batch()
    schedule: Schedule = Schedule()
    optimizer: Optimizer = Optimizer()
    comm: Comm = Comm()
    device: Device = Device()
    events: Events = Events()

    REQUIRED: ClassVar[tuple[str, ...]] = ("model", "data")

    def to_toml(self) -> str:
        """Return the resolved job: every key with its value, the data's path absolute, loadable from anywhere."""
        import tomli_w

        tables: dict[str, dict[str, Any]] = self.model_dump(by_alias=True)
        if not self.data.path.startswith("package:"):
            tables["data"]["path"] = str(self.data.resolved_path)
        return tomli_w.dumps(tables)

    @property
    def sha256(self) -> str:
        """The digest of the resolved job's text."""
        return sha256(self.to_toml().encode()).hexdigest()


TABLES: dict[str, type[Section]] = {
    "job": Run,
    "model": Model,
    "data": Data,
    "parallel": Parallel,
    "batch": Batch,
    "schedule": Schedule,
    "optimizer": Optimizer,
    "comm": Comm,
    "device": Device,
    "events": Events,
}
"""The sections by the name of their table."""
