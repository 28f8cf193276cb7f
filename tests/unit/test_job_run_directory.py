"""Files that one of many may write, also where the file system has no hard links."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from hpcpipe.job.run_directory import write_once


@pytest.fixture(params=[None, errno.EPERM, errno.ENOTSUP, errno.EMLINK], ids=["links", "EPERM", "ENOTSUP", "EMLINK"])
def links(request, monkeypatch):
    """Let the file system have hard links, or refuse them in one of the ways of FAT, Lustre and object stores."""

    def refuse(self, target):
        raise OSError(request.param, "refused")

    if request.param is not None:
        monkeypatch.setattr(Path, "hardlink_to", refuse)


WRITE = """
import sys
from pathlib import Path
from hpcpipe.job.run_directory import write_once
if sys.argv[3] != "links":
    def refuse(self, target):
        raise OSError(int(sys.argv[3]), "refused")
    Path.hardlink_to = refuse
print(flush=True)
sys.stdin.readline()
sys.exit(0 if write_once(Path(sys.argv[1]), sys.argv[2] * 1000) else 7)
"""


@pytest.mark.parametrize("links", ["links", str(errno.EPERM)], ids=["links", "no links"])
def test_of_many_processes_one_writes_and_nothing_else_is_left(tmp_path, links):
    path = tmp_path / "file"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, path, f"{n}", links], **pipes) for n in range(6)]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:  # all have come this far
        writer.stdin.write("\n")
        writer.stdin.flush()
    codes = [writer.wait(timeout=30) for writer in writers]
    assert sorted(codes) == [0, 7, 7, 7, 7, 7]
    assert path.read_text() == str(codes.index(0)) * 1000
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("links")
def test_what_was_there_before_stays(tmp_path):
    path = tmp_path / "file"
    path.write_text("older")
    assert not write_once(path, "newer")
    assert path.read_text() == "older"


def test_a_folder_that_cannot_be_written_is_an_error_and_not_a_success(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_once(tmp_path / "missing" / "file", "text")
