"""`hpcpipe checkpoint`: look at checkpoints, check them, write them for other tools or dealt out anew.

Parsing and printing only; nothing here needs MPI or torch.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcpipe.cli.terminal import make_console, refuse, say, suggest
from hpcpipe.exit_code import ExitCode

if TYPE_CHECKING:
    from hpcpipe.checkpoint import Manifest, Reader

PATH_HELP = "PATH is a checkpoint (…/step_00000100), a folder of them, a run directory or a folder of runs."


def _epilog(*examples: str) -> str:
    lines = "\n".join(f"  hpcpipe checkpoint {example}" for example in examples)
    return f"{PATH_HELP}\n\n\b\nExamples:\n{lines}\n"


@click.group(
    epilog="\b\nExamples:\n"
    "  hpcpipe checkpoint inspect runs/llama/latest\n"
    "  hpcpipe checkpoint verify runs/llama/latest\n"
    "  hpcpipe checkpoint export runs/llama/latest my-llama\n"
    "  hpcpipe checkpoint COMMAND --help\n"
)
def checkpoint() -> None:
    """Look at checkpoints, check them, write them for other tools.

    A checkpoint is a folder with manifest.json and safetensors files named by layer and parameter, so a run of any
    layout can resume from it: hpcpipe run JOB.toml --resume PATH.
    """


@checkpoint.command(
    short_help="Say what checkpoints hold.",
    epilog=_epilog("inspect runs/llama/latest", "inspect runs/llama/latest --tensors --json"),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--tensors", is_flag=True, help="List every tensor of the model.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def inspect(path: Path, tensors: bool, as_json: bool) -> None:
    """Say what checkpoints hold, by their manifests; files are not read."""
    from hpcpipe.checkpoint import CheckpointError, faults_of, read_manifest

    described = []
    for folder in _steps_at(path):
        try:
            manifest = read_manifest(folder)
            faults = faults_of(folder, manifest, content=False)
            described.append(_describe(folder, manifest, faults, tensors=tensors))
        except CheckpointError as error:
            described.append({"path": str(folder), "ok": False, "faults": [str(error)]})
    if as_json:
        _print_json("hpcpipe-checkpoint-inspect", {"checkpoints": described})
    else:
        for each in described:
            _print_described(each)
        _say_next(described)
    sys.exit(ExitCode.DONE if all(each["ok"] for each in described) else ExitCode.INPUT)


@checkpoint.command(
    short_help="Compare every file with its hash.",
    epilog=_epilog("verify runs/llama/latest", "verify runs/llama/latest/checkpoints/step_00000100 --json"),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
def verify(path: Path, as_json: bool) -> None:
    """Read every file and compare it with the hash in the manifest.

    The exit code is 2 if one of the checkpoints is damaged.
    """
    from hpcpipe.checkpoint import CheckpointError, faults_of, read_manifest
    from hpcpipe.checkpoint.rewrite import missing_elements

    verdicts: list[dict[str, Any]] = []
    for folder in _steps_at(path):
        faults: list[str] = []
        manifest: Manifest | None = None
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            faults = [str(error)]
        if manifest is not None:
            with _progress(f"reading {folder.name}", manifest.num_bytes, shown=not as_json) as note:
                faults = faults_of(folder, manifest, content=True, note=note)
            faults += [] if faults else missing_elements(folder, manifest)
        verdicts.append({"path": str(folder), "ok": not faults, "faults": faults})
        if not as_json:
            size = "" if manifest is None else f", {_bytes(manifest.num_bytes)} in {len(manifest.files)} files"
            say(f"{folder}: {'good' if not faults else 'DAMAGED'}{size}")
            for fault in faults:
                say(f"  {fault}")
    if as_json:
        _print_json("hpcpipe-checkpoint-verify", {"checkpoints": verdicts})
    else:
        _say_next(verdicts)
    sys.exit(ExitCode.DONE if all(each["ok"] for each in verdicts) else ExitCode.INPUT)


@checkpoint.command(
    short_help="Write a model as a Hugging Face folder.",
    epilog=_epilog("export runs/llama/latest my-llama", "export runs/llama/latest my-llama --names own"),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--shard-gb", type=click.FloatRange(min=0.001), default=5.0, show_default=True, help="Largest file in GB."
)
@click.option(
    "--names",
    type=click.Choice(["huggingface", "own"]),
    help="What tensors are called; with the names of Hugging Face, transformers loads the folder.",
    show_default="huggingface for kind gpt and llama, else own",
)
def export(path: Path, folder: Path, shard_gb: float, names: str | None) -> None:
    """Write the newest model of PATH to FOLDER as model.safetensors and config.json.

    Larger models become several files with model.safetensors.index.json. With their own names, tensors are called by
    layer and parameter; one that is tied is stored once, under the name of its first use.
    """
    from hpcpipe.checkpoint import CheckpointError
    from hpcpipe.checkpoint.rewrite import export as write
    from hpcpipe.cli.hf_folder import language_model_of, write_hf_folder

    if folder.exists() and any(folder.iterdir()):
        refuse(f"{folder} is not empty; name a new folder")
    reader = _newest(path)
    model = None if names == "own" else language_model_of(reader)
    if names == "huggingface" and model is None:
        refuse("Hugging Face has no names for the tensors of this model; leave out --names")
    try:
        with _progress("writing", reader.manifest.num_bytes, shown=True) as note:
            if model is None:
                written = write(reader, folder, shard_bytes=int(shard_gb * 1e9), note=note)
            else:
                written = write_hf_folder(reader, model, folder, shard_bytes=int(shard_gb * 1e9), note=note)
    except OSError as error:
        _refuse_folder(folder, error)
    except (CheckpointError, ValueError) as error:
        refuse(str(error))
    say(str(reader.folder))
    for each in written:
        click.echo(f"  -> {each}  {_bytes(each.stat().st_size)}")
    if model is None:
        say("to read it: safetensors.torch.load_file(...) of each file; config.json is the job's [model]")
    else:
        say(f'to train from it: [model] init = "{folder}"; transformers loads it with from_pretrained("{folder}")')


@checkpoint.command(
    short_help="Write a checkpoint for another mesh.",
    epilog=_epilog("reshape runs/llama/latest fewer --pipeline 2", "reshape runs/llama/latest whole"),
)
@click.argument("path", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--pipeline", type=click.IntRange(min=1), default=1, show_default=True, help="Pipeline stages.")
@click.option("--data", type=click.IntRange(min=1), default=1, show_default=True, help="Replicas.")
@click.option("--tensor", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor slices.")
def reshape(path: Path, folder: Path, pipeline: int, data: int, tensor: int) -> None:
    """Write the newest checkpoint of PATH anew into FOLDER, with whole tensors and a file for each rank of a mesh.

    Going on in another layout does not need it: --resume reads any checkpoint in any layout. It is for those who read
    the files with other tools, want fewer of them, or want the ranks of the new layout to read few files each.
    """
    from hpcpipe.checkpoint import CheckpointError
    from hpcpipe.checkpoint.rewrite import reshape as write

    target = folder / _steps_at(path)[0].name
    if target.exists():
        refuse(f"{target} is there already; name another folder")
    reader = _newest(path)
    try:
        with _progress("writing", reader.manifest.num_bytes, shown=True) as note:
            written = write(reader, folder, pipeline=pipeline, data=data, tensor=tensor, note=note)
    except OSError as error:
        _refuse_folder(folder, error)
    except CheckpointError as error:
        refuse(str(error))
    say(f"{reader.folder}\n  -> {written}")
    suggest("to resume from it", "run", "JOB.toml", "--resume", written)


def _refuse_folder(folder: Path, error: OSError) -> NoReturn:
    refuse(f"{folder} cannot be written: {error.strerror or error}; name another folder")


def _say_next(checkpoints: Sequence[dict[str, Any]]) -> None:
    good = [each["path"] for each in checkpoints if each["ok"]]
    if not good:
        say("a run can resume from none of them; without --resume it begins anew")
        return
    which = "the newest" if len(good) == len(checkpoints) else "the newest good one"
    suggest(f"to resume from {which}", "run", "JOB.toml", "--resume", good[0])


def _steps_at(path: Path) -> list[Path]:
    from hpcpipe.checkpoint import CheckpointError, steps_at

    try:
        return steps_at(path)
    except CheckpointError as error:
        refuse(str(error))


def _newest(path: Path) -> "Reader":
    """Return a reader of the newest checkpoint of a path, once its files have been looked through."""
    from hpcpipe.checkpoint import CheckpointError, Reader, faults_of

    folder = _steps_at(path)[0]
    try:
        reader = Reader(folder)
    except CheckpointError as error:
        refuse(str(error))
    with _progress(f"reading {folder.name}", reader.manifest.num_bytes, shown=True) as note:
        faults = faults_of(folder, reader.manifest, content=True, note=note)
    if faults:
        refuse(f"{folder} cannot be used: {'; '.join(faults)}")
    return reader


def _describe(folder: Path, manifest: "Manifest", faults: list[str], *, tensors: bool) -> dict[str, Any]:
    pipeline, data, tensor, chunks = manifest.mesh
    elements = sum(prod(entry.shape) for entry in manifest.parameters.values())
    described = {
        "path": str(folder),
        "ok": not faults,
        "faults": faults,
        "step": manifest.step,
        "created_utc": manifest.created_utc,
        "software": manifest.software,
        "job": manifest.job_name,
        "job_sha256": manifest.job_sha256,
        "restarts": manifest.restarts,
        "mesh": {"pipeline": pipeline, "data": data, "tensor": tensor, "chunks": chunks},
        "layers": len(manifest.layers),
        "tensors": len(manifest.parameters),
        "elements": elements,
        "optimizer": manifest.optimizer,
        "state": sorted(manifest.state),
        "samples": manifest.samples,
        "seed": manifest.seed,
        "files": len(manifest.files),
        "bytes": manifest.num_bytes,
    }
    if tensors:
        described["model"] = {
            name: {"dtype": entry.dtype, "shape": list(entry.shape)} for name, entry in manifest.parameters.items()
        }
        described["ties"] = dict(manifest.ties)
    return described


def _print_described(each: dict[str, Any]) -> None:
    click.echo(each["path"])
    for fault in each["faults"]:
        say(f"  DAMAGED    {fault}")
    if "step" not in each:
        return
    mesh = each["mesh"]
    again = f", start {each['restarts'] + 1} of the training" if each["restarts"] else ""
    click.echo(f"  step       {each['step']} of job {each['job']} ({each['job_sha256'][:12]}){again}")
    click.echo(f"  written    {each['created_utc'][:19]} UTC by {each['software']}")
    click.echo(
        f"  mesh       pipeline {mesh['pipeline']} x data {mesh['data']} x tensor {mesh['tensor']}, "
        f"chunks {mesh['chunks']}; any other may resume"
    )
    click.echo(f"  model      {each['elements']:,} elements in {each['tensors']} tensors of {each['layers']} layers")
    state = f" ({', '.join(each['state'])})" if each["state"] else ""
    click.echo(f"  optimizer  {each['optimizer']}{state}")
    click.echo(f"  data       {each['samples']:,} sequences done; seed {each['seed']}")
    click.echo(f"  size       {_bytes(each['bytes'])} in {each['files']} files")
    for name, entry in each.get("model", {}).items():
        click.echo(f"    {entry['dtype']:>4} {'x'.join(map(str, entry['shape'])) or 'scalar':>14}  {name}")
    for name, first in each.get("ties", {}).items():
        click.echo(f"    {name} is {first}")


@contextmanager
def _progress(words: str, num_bytes: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal; yield what is told of every piece of work, in bytes."""
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(words), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=num_bytes)
        yield lambda done: bar.advance(task, done)


def _bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def _print_json(format_name: str, content: dict[str, Any]) -> None:
    click.echo(json.dumps({"format": format_name, "schema_version": "1.0.0", **content}, indent=2))
