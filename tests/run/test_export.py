"""A run's checkpoint as a Hugging Face folder: transformers finds the loss that the run has told of it."""

import json

import pytest
from command import hpcpipe

SEQ, HELD_OUT, SAMPLES = 32, 8, 40
MODELS = {
    "gpt": 'kind = "gpt"\nheads = 2\ntied = true',
    "llama": 'kind = "llama"\nheads = 4\nkv_heads = 2\nmlp_dim = 48',
}


@pytest.mark.parametrize("kind", MODELS)
def test_transformers_has_the_held_out_loss_of_an_exported_run(tmp_path, kind):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    text = b"".join(b"%d times %d is %d; " % (i, i, i * i) for i in range(200))[: SAMPLES * SEQ + 1]
    (tmp_path / "text.txt").write_bytes(text)
    (tmp_path / "job.toml").write_text(f"""
[job]
steps = 4
[model]
{MODELS[kind]}
layers = 3
dim = 16
context = {SEQ}
[data]
kind = "text"
path = "text.txt"
eval_fraction = {HELD_OUT / SAMPLES}
[parallel]
pipeline = 2
[batch]
microbatches = 4
[checkpoint]
every = "end"
[events]
on = false
""")
    process = hpcpipe("run", "job.toml", "--run-dir", "here", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    process = hpcpipe("checkpoint", "export", "here", "trained", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    told = [json.loads(line) for line in (tmp_path / "here" / "metrics.jsonl").read_text().splitlines()][-1]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "trained").eval()
    tokens = torch.tensor(list(text))
    windows = [tokens[i * SEQ : i * SEQ + SEQ + 1] for i in range(SAMPLES - HELD_OUT, SAMPLES)]
    batch = torch.stack(windows)
    with torch.no_grad():
        logits = model(batch[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert loss.item() == pytest.approx(told["eval_loss"], rel=1e-5)
