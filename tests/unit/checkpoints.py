"""Small checkpoints without a training, for tests: four layers, a state with moments and a step counter."""

import numpy as np
from job_text import VALID, write_job

from hpcpipe.checkpoint import MODEL, Extent, Held, Manifest, RawTensor, commit, make_partial, merge_parts, write_part
from hpcpipe.job import load_job

SHAPES = {f"block.{i}.weight": (6, 4) for i in range(4)} | {"head.bias": (5,)}
LAYERS = ("block.0", "block.1", "block.2", "block.3", "head")


def job_of(folder, *overrides):
    """Return a checked job; its text can be changed by overrides."""
    return load_job(write_job(folder, VALID), overrides)


def values_of(name, step, kind=MODEL):
    """Return the elements of a tensor, different for every name, step and kind."""
    shape = () if kind == "step" else SHAPES[name]
    seed = [step, len(kind), *name.encode()]
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


def held(name, step, kind=MODEL):
    """Return a tensor whole, as a rank would save it."""
    values = values_of(name, step, kind)
    raw = RawTensor("F32", values.shape, values.reshape(-1).view(np.uint32))
    return Held(kind, name, values.shape, Extent(0, values.size), raw)


def manifest_of(job, step, *, created="2026-01-01T00:00:00", tokenizer=None):
    """Return a manifest without tensors."""
    batch, mesh = job.batch, job.parallel
    return Manifest(
        step=step,
        created_utc=f"{created}.{step:06d}",
        software="hpcpipe test",
        job_name=job.run.name,
        job_toml=job.to_toml(),
        job_sha256=job.sha256,
        mesh=(mesh.pipeline, mesh.data, mesh.tensor, job.chunks),
        seed=job.run.seed,
        samples=step * batch.microbatches * batch.microbatch_size * mesh.data,
        optimizer=job.optimizer.name,
        restarts=0,
        layers=LAYERS,
        ties={},
        files={},
        parameters={},
        state={},
        tokenizer=tokenizer,
    )


def make(folder, job, step, *, parts=2, **more):
    """Write a whole checkpoint as `parts` ranks would, and return its path."""
    partial = make_partial(folder, step)
    for number in range(parts):
        names = list(SHAPES)[number::parts]
        pieces = [held(name, step, kind) for name in names for kind in (MODEL, "exp_avg", "step")]
        write_part(partial, pieces, number=number, count=parts)
    return commit(folder, step, merge_parts(folder, step, manifest_of(job, step, **more), parts))


def damage(path, how):
    """Damage a file of a checkpoint: "flipped", "truncated", "longer" or "missing"."""
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[:-7])
    elif how == "longer":
        path.write_bytes(bytes(content) + b"\0")
    else:
        content[len(content) * 2 // 3] ^= 1
        path.write_bytes(bytes(content))
