"""Whether a job can go on from a checkpoint: what must be as it was, and what may change.

The layout may change (stages, replicas, slices, chunks, micro-batches of one global batch), and so may the number of
steps, learning rate and logging. It compares job tables and the tokenizer; shapes are compared by whoever has built the
model.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from hpcpipe.checkpoint.manifest import CheckpointError, Manifest
from hpcpipe.checkpoint.tensor_files import hash_file
from hpcpipe.job import Job
from hpcpipe.job.datasets import Tokenized

_FREE_MODEL_KEYS = frozenset({"recompute", "dropout", "init", "import_from"})
_FREE_DATA_KEYS = frozenset(
    {"path", "tokenizer", "import_from", "eval_path", "eval_every", "eval_samples", "eval_microbatch_size"}
)


def check_fit(folder: Path, manifest: Manifest, job: Job) -> None:
    """Refuse a checkpoint that a job cannot continue.

    Raises
    ------
    CheckpointError
        The message has each value that differs, the checkpoint's and the job's, and what to do.
    """
    faults = list(_misfits(manifest, job))
    if faults:
        raise CheckpointError(f"{folder} is of another training: {'; '.join(faults)}, or start anew without --resume")


def _misfits(manifest: Manifest, job: Job) -> Iterator[str]:
    saved, wanted = tomllib.loads(manifest.job_toml), tomllib.loads(job.to_toml())
    values = [
        (f"[{table}] {key}", then, wanted[table][key])
        for table, free in (("model", _FREE_MODEL_KEYS), ("data", _FREE_DATA_KEYS))
        for key, then in saved[table].items()
        if key not in free and key in wanted[table]
    ]
    values += [
        ("[data] path", _file_name(saved), _file_name(wanted)),
        ("[optimizer] name", saved["optimizer"]["name"], wanted["optimizer"]["name"]),
        ("[precision] compute", _compute(saved), _compute(wanted)),
        ("[job] seed", manifest.seed, job.run.seed),
    ]
    for key, then, now in values:
        if then != now:
            yield f"it has {key} = {then!r}, the job has {now!r}; set it to {then!r}"
    before, after = manifest.tokenizer, tokenizer_hash(job)
    if None not in (before, after) and before != after:
        yield (
            f"it has [data] tokenizer = {_said(saved, before)}, the job has {_said(wanted, after)}; "
            "set it to the same tokenizer, with the same content"
        )
    then, now = samples_per_step(saved), samples_per_step(wanted)
    if then != now:
        yield (
            f"it has {then} sequences a step (microbatches x microbatch_size x data), the job has {now}, so its place "
            f"in the data would be another; keep the product at {then}"
        )


def samples_per_step(tables: Mapping[str, Any]) -> int:
    """Return the sequences of a global batch, from the tables of a resolved job."""
    batch = tables["batch"]
    return int(batch["microbatches"] * batch["microbatch_size"] * tables["parallel"]["data"])


def tokenizer_hash(job: Job) -> str | None:
    """Return the hash of the file of a job's tokenizer, empty where it has none; None where it cannot be read."""
    file = job.data.resolved_tokenizer if isinstance(job.data, Tokenized) else None
    if file is None:
        return ""
    try:
        return hash_file(file).xxh3_128
    except OSError:
        return None


def _said(tables: Mapping[str, Any], digest: str | None) -> str:
    return f"{tables['data']['tokenizer']!r} (xxh3 {digest})" if digest else "''"


def _compute(tables: Mapping[str, Any]) -> object:
    return tables.get("precision", {}).get("compute", "fp32")


def _file_name(tables: Mapping[str, Any]) -> str:
    return PurePath(str(tables["data"].get("path", ""))).name
