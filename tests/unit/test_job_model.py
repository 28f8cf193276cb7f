"""The model's table: tied embeddings and recomputed blocks, what they become on the stages, and what is wrong."""

from pathlib import Path

import pytest
import torch
from job_text import VALID, fault_of, write_job

from hpcpipe.job import Job, load_job
from hpcpipe.models import build, gpt_layers
from hpcpipe.train import Layout


@pytest.mark.parametrize(
    ("recompute", "split", "expected"),
    [
        ('"none"', "[2, 2]", [[], []]),
        ('"all"', "[1, 3]", [[range(1, 2)], [range(1), range(1, 2), range(2, 3)]]),
        ("[[0, 0], [1, 3]]", "[2, 2]", [[range(1, 2), range(2, 3)], [range(2)]]),
        ("[[1, 2]]", "[3, 1]", [[range(2, 4)], []]),
    ],
)
def test_recomputed_blocks_are_found_on_the_stages_that_hold_them(tmp_path: Path, recompute, split, expected) -> None:
    """The first stage holds the embedding in front of its blocks."""
    job = load_job(write_job(tmp_path), [f"model.recompute={recompute}", f"parallel.split={split}"])
    layout = Layout.of(job)
    assert [layout.recomputed(pieces[0]) for pieces in layout.pieces] == expected
    assert Job.from_resolved(job.to_toml()).model == job.model


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('"some"', '"none", "all" or a list of ranges'),
        ("3", '"none", "all" or a list of ranges'),
        ("[]", "empty list"),
        ("[[0, 1], 3]", "recompute[1] must be a range of blocks, [first, last], got 3"),
        ("[[2, 1]]", "recompute[0] = [2, 1] is no range"),
        ("[[0, 2], [2, 3]]", "recompute[1] = [2, 3] begins before [0, 2] ends"),
        ("[[0, 4]]", "recompute names block 4, but the model's 4 blocks are 0 to 3"),
    ],
)
def test_ranges_that_are_none_are_faults_with_their_place(tmp_path: Path, value: str, message: str) -> None:
    fault = fault_of(write_job(tmp_path, VALID.replace("[data]", f"recompute = {value}\n\n[data]")))
    assert message in fault.message
    assert fault.line == 8


def test_a_tied_head_begins_as_the_embedding_wherever_the_chain_is_cut() -> None:
    sizes = {"layers": 2, "dim": 8, "heads": 2, "context": 4, "vocab_size": 11, "dropout": 0.0, "seq_len": 4}
    tied, free = gpt_layers(**sizes, tied=True), gpt_layers(**sizes)
    whole, untied = build(tied, range(4), seed=3), build(free, range(4), seed=3)
    (alone,) = build(tied, range(3, 4), seed=3)
    assert torch.equal(whole[3].project.weight, whole[0].token.weight)
    assert torch.equal(alone.project.weight, whole[0].token.weight)
    assert not torch.equal(untied[3].project.weight, untied[0].token.weight)
    names = [name for name, p in untied[3].named_parameters() if not torch.equal(p, whole[3].get_parameter(name))]
    assert names == ["project.weight"]
    for one, other in zip(whole[:3], untied[:3], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
