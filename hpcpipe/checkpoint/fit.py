"""Whether a job can go on from a checkpoint: what must be as it was, and what may change.

The layout may change (stages, replicas, slices, chunks, micro-batches of one global batch), and so may the number of
steps, learning rate and logging. It compares job tables and the tokenizer; shapes are compared by whoever has built the
model.
"""

import tomllib
from collections.abc import Mapping
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
        The message has the checkpoint's value, the job's, and what to do.
    """
    saved, wanted = tomllib.loads(manifest.job_toml), tomllib.loads(job.to_toml())
    for table, free in (("model", _FREE_MODEL_KEYS), ("data", _FREE_DATA_KEYS)):
        for key in saved[table]:
            if key not in free and key in wanted[table] and saved[table][key] != wanted[table][key]:
                _refuse(folder, f"[{table}] {key}", saved[table][key], wanted[table][key])
    if saved["optimizer"]["name"] != wanted["optimizer"]["name"]:
        _refuse(folder, "[optimizer] name", saved["optimizer"]["name"], wanted["optimizer"]["name"])
    then, now = (tables.get("precision", {}).get("compute", "fp32") for tables in (saved, wanted))
    if then != now:
        _refuse(folder, "[precision] compute", then, now)
    if manifest.seed != job.run.seed:
        _refuse(folder, "[job] seed", manifest.seed, job.run.seed)
    then, now = _file_name(saved), _file_name(wanted)
    if then != now:
        _refuse(folder, "[data] path", then, now)
    then, now = manifest.tokenizer, tokenizer_hash(job)
    if None not in (then, now) and then != now:
        raise CheckpointError(
            f"{folder} is of another training: it has [data] tokenizer = {_said(saved, then)}, the job has "
            f"{_said(wanted, now)}; set it to the same tokenizer, with the same content, or start anew without --resume"
        )
    before, after = samples_per_step(saved), samples_per_step(wanted)
    if before != after:
        raise CheckpointError(
            f"{folder} was trained with {before} sequences a step (microbatches x microbatch_size x data), the job "
            f"has {after}: its place in the data would be another; keep the product at {before}"
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


def _file_name(tables: Mapping[str, Any]) -> str:
    return PurePath(str(tables["data"].get("path", ""))).name


def _refuse(folder: Path, key: str, saved: object, wanted: object) -> None:
    raise CheckpointError(
        f"{folder} is of another training: it has {key} = {saved!r}, the job has {wanted!r}; set it to {saved!r}, or "
        "start anew without --resume"
    )
