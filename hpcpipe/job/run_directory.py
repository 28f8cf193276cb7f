"""Where a run keeps what it leaves: `runs/<job name>/<id>/`, made once, with `latest` pointing to the newest."""

import os
import shutil
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path


def make_run_directory(base: Path, name: str, *, job_id: str | None, restart: int) -> Path:
    """Make and return a new run directory.

    Its id is the Slurm job's with the restart count, else the local time; a number is added where that is taken, so two
    runs never write to one place.
    """
    stem = datetime.now().strftime("%Y%m%d-%H%M%S") if job_id is None else f"{job_id}-{restart}"
    for attempt in count():
        path = base / name / (stem if attempt == 0 else f"{stem}.{attempt}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("unreachable")


def continue_run_directory(path: Path) -> None:
    """Prepare the directory of a run that goes on in it: put its event log aside, remove what tells how it ended."""
    events = path / "events"
    if events.exists():
        events.rename(next(aside for n in count() if not (aside := path / f"events.{n}").exists()))
    for name in ("failures", "hang"):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / "ranks.json").unlink(missing_ok=True)


def point_latest(path: Path) -> None:
    """Let `latest` beside the run directory point to it: written beside its name and renamed.

    Only links are replaced; a file or folder of that name is somebody's own and stays.
    """
    latest = path.parent / "latest"
    if latest.exists() and not latest.is_symlink():
        return
    partial = path.parent / f".latest.{path.name}.{os.getpid()}"
    partial.symlink_to(path.name)
    partial.replace(latest)


def write_whole(path: Path, text: str) -> None:
    """Write a file beside its name, sync it and rename it, so that nobody reads half of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def write_once(path: Path, text: str) -> bool:
    """Write a file if there is none yet, and return whether it was this call that wrote it; of many callers one does.

    It appears whole, by a hard link; where the file system has none it is made first and filled then, so a reader must
    be ready for half of it.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    try:
        path.hardlink_to(partial)
    except FileExistsError:
        return False
    except OSError:  # EPERM, ENOTSUP, EMLINK and others, by file system
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
    finally:
        partial.unlink(missing_ok=True)
    return True
