"""Checkpoints on disk: what they are called, how one appears at once and whole, and how old ones go.

A crash at any moment leaves what was whole before. It must not know what is in the files.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hpcpipe.checkpoint.manifest import NAME, Manifest

FOLDER = "checkpoints"
LATEST = "latest"
_STEP = re.compile(r"step_(\d{8,})")
_CREATED = re.compile(rb'"created_utc": "([^"]*)"')
_HEAD = 1024
_PARTIAL, _GOING = ".partial", ".going"


def step_folder(folder: Path, step: int) -> Path:
    """Return where the checkpoint after so many steps lies."""
    return folder / f"step_{step:08d}"


def step_of(path: Path) -> int | None:
    """Return the step that a folder's name tells, None if it is no checkpoint's."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else None


def partial_folder(folder: Path, step: int) -> Path:
    """Return where that checkpoint is written before it is whole."""
    whole = step_folder(folder, step)
    return whole.with_name(whole.name + _PARTIAL)


def list_steps(*folders: Path) -> list[Path]:
    """Return the checkpoints of some folders, the newest first: by the time that they tell, copied or not."""
    found = []
    for folder in folders:
        with suppress(OSError):
            for path in folder.iterdir():
                if step_of(path) is not None and not path.is_symlink() and (path / NAME).exists():
                    found.append((_created(path), path.name, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def make_partial(folder: Path, step: int) -> Path:
    """Make the folder to write into; any rank may be the first."""
    path = partial_folder(folder, step)
    path.mkdir(parents=True, exist_ok=True)
    return path


def partial_bytes(folder: Path, step: int) -> int:
    """Return how many bytes of a partial checkpoint are there by now."""
    with suppress(OSError):
        return sum(path.stat().st_size for path in partial_folder(folder, step).iterdir())
    return 0


def commit(folder: Path, step: int, manifest: Manifest) -> Path:
    """Turn a partial checkpoint whose files are synced into a whole one, in one moment, and point `latest` to it.

    Raises
    ------
    OSError
        It cannot be done; what was there before is still there.
    """
    partial, whole = partial_folder(folder, step), step_folder(folder, step)
    listed = {NAME, *manifest.files}
    for path in partial.iterdir():  # of an earlier attempt that was killed
        if path.name not in listed:
            path.unlink()
    with (partial / NAME).open("w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    if whole.exists():  # saved again after a return to an earlier step
        _put_away(whole)
    partial.rename(whole)
    sync_folder(folder)
    _point_latest(folder, whole.name)
    sync_folder(folder)
    return whole


def discard(folder: Path, step: int) -> None:
    """Remove a partial checkpoint."""
    shutil.rmtree(partial_folder(folder, step), ignore_errors=True)


def clean(folder: Path) -> None:
    """Remove what interrupted writing and removing have left; call when nobody writes there."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.name.endswith((_PARTIAL, _GOING)) or path.name.startswith(f".{LATEST}."):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)


def prune(folders: Sequence[Path], keep: int) -> list[Path]:
    """Remove all but the `keep` newest checkpoints of these folders, except those that somebody reads; return them.

    What was just written is the newest, so it always stays.
    """
    removed = []
    for path in list_steps(*folders)[keep:]:
        with suppress(OSError):
            if _is_free(path):
                _put_away(path)
                removed.append(path)
    return removed


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Ask that nobody removes a checkpoint while it is read; where locks do not work it may go all the same."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context((path / NAME).open("rb"))
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a loss of power; file systems that cannot do so are left alone."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _created(path: Path) -> str:
    """Return when a checkpoint became whole, as text that sorts; it stands at the manifest's begin."""
    with suppress(OSError), (path / NAME).open("rb") as file:
        match = _CREATED.search(file.read(_HEAD))
        return match[1].decode(errors="replace") if match else ""
    return ""


def _is_free(path: Path) -> bool:
    try:
        with (path / NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _put_away(path: Path) -> None:
    """Remove a folder so that nobody ever finds half of it under its name."""
    going = path.with_name(f".{path.name}.{os.getpid()}{_GOING}")
    shutil.rmtree(going, ignore_errors=True)
    path.rename(going)
    shutil.rmtree(going, ignore_errors=True)


def _point_latest(folder: Path, name: str) -> None:
    latest = folder / LATEST
    if latest.exists() and not latest.is_symlink():
        return
    beside = folder / f".{LATEST}.{os.getpid()}"
    beside.unlink(missing_ok=True)
    beside.symlink_to(name)
    beside.replace(latest)
