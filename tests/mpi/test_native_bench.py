"""`hpcpipe bench allreduce` on ranks that are there already; it checks every method's sums itself."""

import pytest

from hpcpipe.bench import allreduce

pytestmark = pytest.mark.mpi


@pytest.mark.mpi(min_size=2)
def test_the_first_rank_has_a_row_for_every_size_and_the_others_nothing(comm, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HPCPIPE_BENCH_RESULT", raising=False)
    monkeypatch.setattr(allreduce, "SIZES", (4096, 65536))
    table = allreduce.run(steps=2)
    if comm.rank > 0:
        assert table is None
    else:
        assert [row[0] for row in table.rows] == [
            4 * (size // 4 // comm.size * comm.size) // 1024 for size in (4096, 65536)
        ]
        assert {len(row) for row in table.rows} == {len(table.columns)}
