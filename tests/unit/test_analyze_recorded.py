"""What a log says of exchanges that shared the network: together they take as long as it was used."""

from pathlib import Path

import pytest
from job_text import VALID, write_job
from synthetic_log import header

from hpcpipe.analyze.recorded import record
from hpcpipe.events import EventWriter, open_run
from hpcpipe.job import load_job
from hpcpipe.plan import Kind, Task
from hpcpipe.simulate import Place


@pytest.mark.parametrize("other", [Kind.RS, Kind.AG])
def test_of_exchanges_that_shared_the_network_the_later_counts_from_the_end_of_the_earlier(
    tmp_path: Path, other: Kind
) -> None:
    job = load_job(write_job(tmp_path, VALID), ["parallel.pipeline=1", "parallel.data=2"])
    (folder := tmp_path / "run" / "events").mkdir(parents=True)
    about = header(toml=job.to_toml())
    with EventWriter(folder / "rank_00000.h5", about, compression="none") as writer:
        for step in range(2):
            begin = 1000 * step
            writer.event(Kind.F, step, 0, 0, begin, begin, begin + 100)
            writer.event(Kind.RS, step, 0, 0, begin + 100, begin + 100, begin + 300)
            writer.event(other, step, 1, 0, begin + 150, begin + 150, begin + 350)
            writer.event(Kind.UPDATE, step, 1, 0, begin + 350, begin + 350, begin + 360)
            writer.step(step, begin, begin + 400)
    times = record(open_run(tmp_path / "run")).times
    assert [times[Place(step, 0, Task(Kind.RS, 0))] for step in range(2)] == [200, 200]
    assert [times[Place(step, 0, Task(other, 1))] for step in range(2)] == [50, 50]
