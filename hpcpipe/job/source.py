"""Read a job file's text, or say in one fault why it has none.

It must not know TOML.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hpcpipe.job.faults import Fault, JobError

LARGEST_FILE = 4 * 2**20


@dataclass(frozen=True)
class Source:
    """A named text; lines end with LF or CRLF."""

    name: str
    text: str

    @cached_property
    def lines(self) -> Sequence[str]:
        """The lines without their ends."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    def line(self, number: int) -> str:
        """Return a line counted from 1, empty where there is none."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""


def read_source(path: Path) -> Source:
    """Return the file's text.

    Raises
    ------
    JobError
        Missing, a folder, unreadable, far too large for a job file, or not UTF-8.
    """
    name = str(path)
    try:
        if path.is_dir():
            inside = sorted(p.name for p in path.glob("*.toml"))
            hint = (
                f"name a file in it, for example {path / inside[0]}" if inside else "name the job file, not its folder"
            )
            raise _whole(name, "is a folder, not a job file", hint)
        if path.exists() and not path.is_file():
            raise _whole(name, "is not a regular file", "name a job file")
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except JobError:
        raise
    except FileNotFoundError:
        raise _whole(name, "no such file", _missing_hint(path)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _whole(name, f"cannot be read: {reason}", "check the path and its permissions") from None
    if len(raw) > LARGEST_FILE:
        raise _whole(name, "is larger than 4 MiB, so it is hardly a job file", "name the job file, not its data")
    return Source(name, _decode(name, raw))


def _decode(name: str, raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if raw.startswith(b"\xef\xbb\xbf") else 0)
        before = raw[:start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode("utf-8-sig", "replace")) + 1
        text = raw.split(b"\n")[line - 1].removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r").decode("utf-8", "replace")
        if b"\0" in raw[:1024]:
            raise _whole(name, "is not text (it contains NUL bytes)", "save the job file as UTF-8 text") from None
        fault = Fault(
            name,
            line,
            column,
            "",
            f"byte 0x{raw[start]:02x} is not UTF-8",
            "save the job file as UTF-8 text",
            source=text,
        )
        raise JobError([fault]) from None


def _missing_hint(path: Path) -> str:
    from hpcpipe.job.words import nearest

    try:
        names = sorted(p.name for p in path.parent.glob("*.toml"))
    except OSError:
        names = []
    near = nearest(path.name, names)
    if near:
        return f"did you mean {path.parent / near}?"
    return (
        f"looked in {path.parent.absolute()}"
        if path.parent.is_dir()
        else f"its folder {path.parent} does not exist either"
    )


def _whole(name: str, message: str, hint: str) -> JobError:
    return JobError([Fault(name, 0, 0, "", message, hint)])
