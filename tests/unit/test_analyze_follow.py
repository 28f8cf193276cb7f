"""Following a run that another process writes: each look sees what was flushed by then, and closed logs end it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_log import Pipeline, write_run

from hpcpipe.cli import follow as module
from hpcpipe.cli.follow import follow
from hpcpipe.events import LogError

MS = 1_000_000

WRITER = """\
import sys
from pathlib import Path
from synthetic_log import header
from hpcpipe.events import EventWriter
writers = []
for line in sys.stdin:
    word, *number = line.split()
    if word == "begin":
        for rank in range(2):
            said = header(rank=rank, world_size=2, toml="[job]\\nsteps = 3\\n")
            writers.append(EventWriter(Path(sys.argv[1]) / f"rank_{rank:05d}.h5", said))
    for writer in writers:
        if word == "step":
            at = int(number[0]) * 10_000_000
            writer.event(0, int(number[0]), 0, 0, at, at, at + 6_000_000)
            writer.step(int(number[0]), at, at + 10_000_000)
        if word == "end":
            writer.close()
        else:
            writer.flush()
    print("done", flush=True)
"""


def acts(*todo: Callable[[], object]) -> Callable[[float], None]:
    """Return a pause in which the next of these happens; one more pause than there are acts fails the test."""
    left = list(todo)

    def pause(seconds: float) -> None:
        assert seconds == module.EVERY_S
        left.pop(0)()

    return pause


def test_each_look_sees_what_was_flushed_and_the_end_ends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    writer = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n{WRITER}", events],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert writer.stdin
    assert writer.stdout

    def tell(words: str) -> Callable[[], None]:
        def act() -> None:
            writer.stdin.write(f"{words}\n")
            assert writer.stdout.readline() == "done\n"

        return act

    try:
        follow(tmp_path, acts(tell("begin"), tell("step 0"), lambda: None, tell("step 1"), tell("end")))
    finally:
        writer.stdin.close()
        writer.kill()
        writer.wait()
        writer.stdout.close()
    assert capsys.readouterr().out.splitlines() == [
        "waiting for the event log",
        "0 of 3 steps",
        "1 of 3 steps · steps 0 to 0: 10.00 ms a step · bubble 40.0%",
        "2 of 3 steps · steps 0 to 1: 10.00 ms a step · bubble 40.0%",
        "2 of 3 steps · steps 0 to 1: 10.00 ms a step · bubble 40.0% · ended",
        f"to see where the time went: hpcpipe analyze {tmp_path}",
    ]


def test_ranks_that_have_no_log_yet_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, Pipeline(3, 2, MS, MS, steps=2))
    (tmp_path / "events" / "rank_00002.h5").rename(tmp_path / "later.h5")

    def stop() -> None:
        raise KeyboardInterrupt

    follow(tmp_path, acts(stop))
    said = capsys.readouterr().out
    assert "2 of 3 ranks have a log" in said
    assert "the run goes on" in said


def test_a_run_that_is_nowhere_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such run"):
        follow(tmp_path / "absent", acts())
