"""The benchmark of GPU kernels where there is no GPU, and the buckets that it packs."""

import json

import pytest
import torch
from click.testing import CliRunner

from hpcpipe.bench.gpu_kernels import WIDTH, block_sizes
from hpcpipe.cli import main


def test_without_a_gpu_it_says_that_nothing_was_run_and_ends_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["bench", "gpu-kernels"])
    assert result.exit_code == 0
    assert "no GPU here: not run" in result.stdout
    document = json.loads(CliRunner().invoke(main, ["bench", "gpu-kernels", "--json"]).stdout)
    assert document["rows"] == []


def test_a_bucket_is_filled_with_whole_gpt_blocks_and_a_part_of_the_last() -> None:
    block = 12 * WIDTH**2 + 13 * WIDTH  # attention 4 d^2 + 4 d, MLP 8 d^2 + 5 d, two norms of 2 d
    assert sum(block_sizes(3 * block)) == 3 * block
    assert len(block_sizes(3 * block)) == 3 * 12
    assert block_sizes(block + 5) == [*block_sizes(block), 5]
