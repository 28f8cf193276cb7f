"""What a start does to a shared file system: rank 0 makes the run directory, the others touch nothing in it.

Each rank counts by an audit hook what it asks of the file system below the job's folder.
"""

import collections
import json
import subprocess
import sys

import pytest

from hpcpipe.cluster.mpiexec import find_mpiexec

MPIEXEC = find_mpiexec()
JOB = """\
[job]
name = "start"
steps = 1
[model]
kind = "synthetic"
[data]
kind = "synthetic"
[parallel]
pipeline = {ranks}
[batch]
microbatches = 2
[schedule]
hint = "bf"
[device]
kind = "emulated"
forward_ms = 1
backward_ms = 2
[events]
on = {events}
"""
HOOK = """\
import atexit, json, os, sys
NAMES = ("open", "os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.listdir", "os.scandir")
folder, rank, done = os.environ["WATCHED"], os.environ.get("PMI_RANK"), []
def note(name, arguments):
    if name in NAMES and arguments and isinstance(arguments[0], (str, bytes, os.PathLike)):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(folder + os.sep):
            done.append([name, os.path.relpath(path, folder)])
if rank is not None and sys.argv[:1] != ["-c"]:
    sys.addaudithook(note)
    def tell():
        told = list(done)
        with open(os.path.join(os.environ["TOLD"], rank), "w") as file:
            json.dump(told, file)
    atexit.register(tell)
"""


def start(folder, ranks, *options, events=False, timeout=90):
    """Run the job on so many ranks of one launcher; return by rank what it asked of the file system."""
    (work := folder / f"work-{ranks}").mkdir()
    (told := folder / f"told-{ranks}").mkdir()
    (hook := folder / "hook").mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    (work / "job.toml").write_text(JOB.format(ranks=ranks, events=str(events).lower()))
    environment = MPIEXEC.environment()
    environment |= {"WATCHED": str(work), "TOLD": str(told), "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = f"{hook}:{environment.get('PYTHONPATH', '')}"
    command = MPIEXEC.command([sys.executable, "-m", "hpcpipe", "run", "job.toml", "--quiet", *options], ranks)
    command = ["timeout", "-k", "5", str(timeout), *command]  # also where the tests themselves are ended
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads((told / str(rank)).read_text()) for rank in range(ranks)]


@pytest.mark.timeout(150)
@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here")
def test_rank_0_alone_asks_for_the_run_directory_and_no_more_often_for_more_ranks(tmp_path):
    first, *others = start(tmp_path, 8)
    assert [asked for rank in others for asked in rank] == [["open", "job.toml"]] * 7
    assert ["os.mkdir", "runs/start"] in first
    (alone, *_), counts = start(tmp_path, 2), collections.Counter
    assert counts(name for name, _ in alone) == counts(name for name, _ in first)


@pytest.mark.timeout(150)
@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here")
def test_with_broadcast_no_rank_but_the_first_opens_the_job_file(tmp_path):
    first, *others = start(tmp_path, 4, "--broadcast")
    assert others == [[]] * 3
    assert first.count(["open", "job.toml"]) == 1


@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here")
def test_a_broken_job_is_refused_once_by_ranks_that_have_not_read_it(tmp_path):
    (tmp_path / "job.toml").write_text(JOB.format(ranks=2, events="false") + "hint = 7\n")
    command = MPIEXEC.command([sys.executable, "-m", "hpcpipe", "run", "job.toml", "--broadcast"], 2)
    done = subprocess.run(
        command, cwd=tmp_path, env=MPIEXEC.environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("job.toml:") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(MPIEXEC is None, reason="no mpiexec here")
def test_of_32_ranks_one_makes_the_directories_and_the_others_touch_nothing_but_their_logs(tmp_path):
    first, *others = start(tmp_path, 32, "--broadcast", events=True, timeout=240)
    for rank, asked in enumerate(others, 1):  # each packs its log beside it when it closes it
        assert all(f"/events/.rank_{rank:05d}.h5." in path for _, path in asked), asked
        assert [name for name, _ in asked] == ["os.rename", "os.remove"]
    assert first.count(["os.mkdir", "runs/start"]) == 2  # once before there is a folder runs to make it in
    (run,) = (path for path in (tmp_path / "work-32" / "runs" / "start").iterdir() if not path.is_symlink())
    assert len(list((run / "events").iterdir())) == 32
    assert [entry["rank"] for entry in json.loads((run / "ranks.json").read_text())] == list(range(32))
