"""A job as a file, whatever the caller has: a path stays what it is, a `Job` is written down for a while."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hpcpipe.job import Job

JobLike = Job | Path | str
"""A checked job, or the path of a job file."""

Settings = Sequence[str] | Mapping[str, Any]
"""Values to change: `["job.steps=3"]` as on the command line, or `{"job.steps": 3}`."""


@contextmanager
def as_file(job: JobLike) -> Iterator[Path]:
    """Give the path of a job file; that of a `Job` is gone afterwards."""
    if not isinstance(job, Job):
        yield Path(job)
        return
    with TemporaryDirectory(prefix="hpcpipe-") as folder:
        path = Path(folder) / "job.toml"
        path.write_text(job.to_toml(), encoding="utf-8")
        yield path


def as_words(settings: Settings) -> list[str]:
    """Return settings as `--set` takes them."""
    if isinstance(settings, Mapping):
        return [f"{key}={_written(key, value)}" for key, value in settings.items()]
    if isinstance(settings, str):
        raise TypeError(f"settings are a list or a dict, not one text: [{settings!r}]")
    return list(settings)


def _written(key: object, value: Any) -> str:
    try:
        return _toml(value)
    except TypeError as error:
        said = f"{key}: a {type(value).__name__} is no value of a job file: {value!r}"
        raise TypeError(f"{said}; leave the key out for its default" if value is None else said) from error


def _toml(value: Any) -> str:
    import tomli_w

    if hasattr(value, "tolist"):  # an array's number, or an array
        value = value.tolist()
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(each)}" for key, each in value.items()) + " }"
    return tomli_w.dumps({"_": str(value) if isinstance(value, Path) else value}).partition("=")[2].strip()
