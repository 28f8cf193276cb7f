"""`hpcpipe bench allreduce` from a plain shell: it starts its ranks itself."""

import json

from command import hpcpipe


def test_a_benchmark_between_ranks_starts_them_and_prints_one_document(tmp_path):
    options = ("--ranks", 2, "--steps", 1, "--json")
    process = hpcpipe("bench", "allreduce", *options, cwd=tmp_path, environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert process.returncode == 0, process.stderr
    document = json.loads(process.stdout)
    assert "over 2 ranks" in document["title"]
    assert [row["KiB"] for row in document["rows"]] == [4, 16, 64, 256, 1024, 4096, 16384, 65536]
    assert all(row["ours"] > 0 and row["whole"] > 0 for row in document["rows"])
