"""What a vision-language model and its records of images and text must satisfy together; what is in them is not read.

One small function a rule.
"""

from collections.abc import Iterator

from hpcpipe.job.datafile import PACKAGE, NoSuchPackageError
from hpcpipe.job.datasets import ImageText, SyntheticData
from hpcpipe.job.faults import Problem
from hpcpipe.job.models import SyntheticModel, Vlm
from hpcpipe.job.rules import Rules
from hpcpipe.job.schema import Job
from hpcpipe.job.words import show

CHECKS = Rules()


@CHECKS.needs("model.kind", "data.kind")
def _a_model_that_sees_has_images(job: Job, _: int | None) -> Iterator[Problem]:
    sees, shows = isinstance(job.model, Vlm), isinstance(job.data, ImageText)
    if sees == shows or isinstance(job.model, SyntheticModel) or isinstance(job.data, SyntheticData):
        return
    yield Problem(
        ("model" if shows else "data", "kind"),
        f"[model] kind = {show(job.model.kind)} cannot learn from [data] kind = {show(job.data.kind)}",
        'kind = "vlm" goes with kind = "image-text"',
    )


@CHECKS.needs("model.encoder_dim", "model.encoder_heads")
def _the_encoder_s_heads_divide_its_width(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Vlm)
    dim, heads = job.model.encoder_dim, job.model.encoder_heads
    if dim % heads:
        yield Problem(
            ("model", "encoder_heads"),
            f"encoder_heads = {heads} does not divide encoder_dim = {dim}",
            f"set encoder_dim to a multiple of {heads}, such as {dim - dim % heads + heads}, or change encoder_heads",
        )


@CHECKS.needs("model.encoder_dim")
def _the_encoder_s_width_holds_positions(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Vlm)
    dim = job.model.encoder_dim
    if dim % 4:
        yield Problem(
            ("model", "encoder_dim"),
            f"encoder_dim = {dim} is no multiple of 4: a position is sines and cosines of row and column",
            f"set encoder_dim to {dim - dim % 4 + 4}",
        )


@CHECKS.needs("model.patch", "model.merge", "data.max_side")
def _an_image_has_at_least_one_token(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.model, Vlm)
    assert isinstance(job.data, ImageText)
    unit, most = job.model.patch * job.model.merge, job.data.max_side
    if most < unit:
        yield Problem(
            ("data", "max_side"),
            f"max_side = {most} is less than the {unit} pixels that are one token (patch = {job.model.patch} x merge = "
            f"{job.model.merge})",
            f"set max_side to at least {unit}",
        )


@CHECKS.needs("data.path", "data.eval_path", "data.max_side")
def _the_records_are_there(job: Job, _: int | None) -> Iterator[Problem]:
    assert isinstance(job.data, ImageText)
    yield from _found(job.data, "path")
    if job.data.eval_path:
        yield from _found(job.data, "eval_path")


def _found(data: ImageText, key: str) -> Iterator[Problem]:
    where, text = ("data", key), str(getattr(data, key))
    try:
        path = data.resolve(text)
        if not path.exists():
            relative = not text.startswith((PACKAGE, "/", "~"))
            hint = "a relative path starts at the job file's folder" if relative else "check the path"
            yield Problem(where, f"the records {path} do not exist", hint)
        elif path.is_file() and path.suffix not in (".jsonl", ".ndjson", ".tar"):
            yield Problem(
                where,
                f"{path} is neither a .jsonl nor a .tar file",
                'name a file of lines {"image": "cat.png", "text": "a cat"}, a .tar or a folder of .tar files',
            )
    except NoSuchPackageError as error:
        yield Problem(where, str(error), "install the package, or name a file")
    except OSError as error:
        yield Problem(where, f"{text} cannot be read: {error.strerror or error}", "check the path and its permissions")
