"""Vision-language training over real ranks: torch's losses, the same bits under every schedule, places by cost."""

import time
from pathlib import Path

import numpy as np
import picture_records
import pytest
import torch
from layers import by_layer, disturb
from picture_records import RECORDS, write_lines, write_tar
from small_tokenizer import write_tokenizer
from training import load, needs, on_four, on_two, train_on

from hpcpipe.cli.rank import wrong_inside
from hpcpipe.data import (
    ImageRecords,
    ImageTextOrder,
    ImageTextSource,
    image_index,
    image_text_batches,
    open_tokenizer,
)
from hpcpipe.models import Load, VlmSizes, build, text_loss, vlm_layers
from hpcpipe.models.recompute import run_layers
from hpcpipe.plan import admission_order
from hpcpipe.runtime import World

JOB = (
    picture_records.JOB
    + """\
seed = 3
[job]
steps = 4
[batch]
microbatches = 6
microbatch_size = 2
[optimizer]
lr = 3e-3
warmup = 1
[comm]
bucket_mb = 0.02
[events]
on = false
"""
)


@pytest.fixture(autouse=True)
def _records(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lines(tmp_path)


def _settings(pipeline, hint, dispatch, *more):
    return [f"parallel.pipeline={pipeline}", f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"', *more]


def reference(job, path):
    """Train without pipeline, buckets or engine: torch alone, the micro-batches' gradients added in order.

    The loss over what is held out follows those of the steps.
    """
    model, batch = job.model, job.batch
    sizes = VlmSizes(**model.model_dump(exclude={"kind", "recompute"}))
    layers = vlm_layers(sizes, Load(1.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    net = torch.nn.ModuleList(build(layers, range(len(layers)), seed=job.run.seed))
    if model.tied:
        net[-1].project.weight = net[model.encoder_layers + 1].token.weight
    from hpcpipe.data import Geometry

    geometry = Geometry(model.patch, model.merge, model.channels, job.data.max_side, shrink=False)
    tokenizer = open_tokenizer(job.data.resolved_tokenizer)
    records = ImageRecords(path, geometry, context=model.context, tokenizer=tokenizer)
    held = round(len(records) * job.data.eval_fraction)
    count = batch.microbatches * job.parallel.data
    order = ImageTextOrder(
        records, held=held, seed=job.data.seed, microbatches=count, microbatch_size=batch.microbatch_size, replicas=1
    )
    batches = image_text_batches(order, replica=0, steps=9)
    decayed, others = [p for p in net.parameters() if p.ndim >= 2], [p for p in net.parameters() if p.ndim < 2]
    settings = job.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    losses = []
    for step in range(job.run.steps):
        batches.load(step)
        optimizer.zero_grad()
        total = 0.0
        for microbatch in range(count):
            labels, of = batches.targets(microbatch)
            loss = text_loss(run_layers(net, batches.inputs(microbatch)), labels) / of
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
    if held:
        with torch.no_grad():
            inputs, labels = ImageTextSource(records).read(np.arange(len(records) - held, len(records)))
            losses.append(text_loss(run_layers(net, inputs), labels).item() / len(labels))
    return losses


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("pipeline", "hint", "dispatch"),
    [
        (1, "bf", "ready"),
        (2, "1f1b", "fixed"),
        (4, "zb-h1", "ready"),
        (4, "zbv", "ready"),
    ],
)
def test_every_loss_equals_that_of_one_process(comm, tmp_path, pipeline, hint, dispatch):
    """Micro-batches without an image and with many, tied embeddings that meet across stages, recomputed blocks."""
    needs(comm, pipeline)
    more = ["model.tied=true", 'model.recompute="all"', 'schedule.admission="as-given"']
    settings = _settings(pipeline, hint, dispatch, *more)
    result = train_on(comm, tmp_path, *settings, text=JOB)
    if comm.rank == 0:
        expected = reference(load(tmp_path, *settings, text=JOB), tmp_path / "records.jsonl")
        assert result[0] == pytest.approx(expected, rel=1e-6)
        assert result[0][-1] < result[0][0] - 0.3


@pytest.mark.mpi
@pytest.mark.parametrize("pipeline", [1, 2])
def test_tokens_of_a_tokenizer_train_and_evaluate_like_one_process(comm, tmp_path, pipeline):
    needs(comm, pipeline)
    words = tmp_path / "words.json"
    if comm.rank == 0:
        write_tokenizer(words, " ".join(text for _, text in RECORDS), size=300)
    words.write_bytes(comm.bcast(words.read_bytes() if comm.rank == 0 else None))
    more = ("data.tokenizer=words.json", "model.vocab_size=302", "data.eval_fraction=0.4")
    settings = _settings(pipeline, "bf", "ready", *more, 'schedule.admission="as-given"')
    result = train_on(comm, tmp_path, *settings, text=JOB)
    if comm.rank == 0:
        expected = reference(load(tmp_path, *settings, text=JOB), tmp_path / "records.jsonl")
        assert np.isfinite(expected).all()
        assert result[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("compute", ["fp32", "bf16"])
def test_ready_has_the_bits_of_fixed_under_any_timing(comm, tmp_path, compute):
    on_two(comm)
    stages = min(comm.size, 4)
    more = ('schedule.admission="pyramid"', "model.tied=true", f'precision.compute="{compute}"')
    runs = [("1f1b", "fixed"), ("zb-h1", "fixed"), ("bf", "ready"), ("zb-h1", "ready"), ("zbv", "ready")]
    bits = None
    for seed, (hint, dispatch) in enumerate(runs if compute == "fp32" else runs[::3]):
        settings = _settings(stages, hint, dispatch, *more)
        delays = disturb(seed, share=0.3, longest_s=0.01) if dispatch == "ready" else lambda _step, _rank: None
        result = train_on(comm, tmp_path, *settings, text=JOB, before_step=delays)
        found = by_layer(comm, result, load(tmp_path, *settings, text=JOB))
        if comm.rank == 0:
            found["losses"] = torch.tensor(result[0], dtype=torch.float64)
            bits = bits or found
            assert [name for name in bits if not torch.equal(found[name], bits[name])] == [], (hint, dispatch)


@pytest.mark.mpi(min_size=2)
def test_two_replicas_train_and_evaluate_like_one_process_with_the_whole_batch(comm, tmp_path):
    stages = min(comm.size // 2, 2)
    more = ("parallel.data=2", "batch.microbatches=3", 'schedule.admission="pyramid"')
    held = ("data.eval_fraction=0.4", "data.eval_microbatch_size=2")  # 3 of 8 records: one replica has fewer
    settings = _settings(stages, "bf", "ready", *more, *held)
    result = train_on(comm, tmp_path, *settings, text=JOB)
    if comm.rank == 0:
        expected = reference(load(tmp_path, *settings, text=JOB), tmp_path / "records.jsonl")
        assert result[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.mpi(min_size=2)
def test_slices_train_and_evaluate_like_one_process(comm, tmp_path):
    """Both encoder and language model are cut, with micro-batches that have no image at all."""
    on_four(comm)
    held = ("data.eval_fraction=0.4", "data.eval_microbatch_size=2")
    more = ("parallel.tensor=2", "model.tied=true", "comm.check_collectives=true")
    settings = _settings(comm.size // 2, "bfw", "ready", *more, *held)
    result = train_on(comm, tmp_path, *settings, text=JOB)
    if comm.rank == 0:
        expected = reference(load(tmp_path, *settings, text=JOB), tmp_path / "records.jsonl")
        assert result[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("rule", ["pyramid", "auto"])
def test_microbatches_take_the_places_that_their_predicted_costs_give_them(comm, tmp_path, rule):
    """The sum of a step's losses has other roundings, and nothing else, when its micro-batches change places."""
    needs(comm, 2)
    seen = []

    def look(step, rank):
        batches = rank.stage._batches
        if batches is not None:
            load_, inputs = batches.load, batches.inputs

            def loading(step):
                load_(step)
                if comm.rank == 0:
                    lengths = [sum(inputs(place)["lengths"]) for place in range(6)]
                    seen.append((step, batches._order, lengths))

            if step == 0:
                batches.load = loading

    settings = _settings(2, "1f1b", "fixed", f'schedule.admission="{rule}"')
    result = train_on(comm, tmp_path, *settings, text=JOB, before_step=look)
    if comm.rank == 0:
        job = load(tmp_path, *settings, text=JOB)
        from hpcpipe.train.batches import image_text_of

        order = image_text_of(job)
        assert result[0] == pytest.approx(reference(job, tmp_path / "records.jsonl"), rel=1e-5)
        changed = False
        for step, places, lengths in seen:
            tokens = order.loads(step).tokens[0]
            assert sorted(places) == list(range(6))
            assert lengths == [int(tokens[microbatch]) for microbatch in places]
            changed = changed or places != tuple(range(6))
            if rule != "auto":
                assert places == admission_order(rule, _costs(order.step(step)[0]))
        assert len(seen) == 4
        assert changed


def _costs(chosen):
    """Return multiply-adds of micro-batches by the formula of the docs: matrices, and pairs that attend."""
    costs = []
    for microbatch in chosen:
        cost = 0.0
        for record in microbatch:
            pictures, text = RECORDS[record]
            patches = [w * h // 16 for w, h in pictures]
            targets = len(text.replace("<image>", "").encode()) + 1
            tokens = sum(patches) // 4 + targets + 1
            cost += sum(48 * 32 * n + 3 * (12 * 32 * 32 * n + 2 * 32 * n * n) for n in patches)
            cost += 32 * 32 * sum(patches) + 32 * 32 * sum(patches) // 4
            cost += 4 * (12 * 32 * 32 * tokens + 2 * 32 * tokens**2) + 32 * 258 * targets
        costs.append(cost)
    return costs


@pytest.mark.mpi(min_size=2)
def test_one_rank_looks_through_the_records_before_the_others(comm, tmp_path, monkeypatch):
    """A launcher starts all ranks at once: thousands that open every image would be a flood."""
    on_two(comm)
    folder = Path(comm.bcast(str(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))

    def job_of(name):
        return load(tmp_path, *_settings(2, "bf", "ready"), f'data.path="{folder / name}"', text=JOB)

    looks, scan = [], image_index._scan

    def counting(*given):
        looks.append(given)
        time.sleep(0.3)  # so that the others could not find it done by chance
        return scan(*given)

    monkeypatch.setattr(image_index, "_scan", counting)
    assert wrong_inside(job_of("records.jsonl"), World(comm)) is None
    assert comm.allgather(len(looks)) == [1, 0]
    if comm.rank == 0:
        (folder / "bad.jsonl").write_text('{"image": "none.png", "text": "<image>"}\n')
    comm.barrier()
    problems = comm.allgather(wrong_inside(job_of("bad.jsonl"), World(comm)))
    assert problems[0] == problems[1]
    assert "none.png" in problems[0]


@pytest.mark.mpi(min_size=2)
def test_a_tar_trains_as_the_same_records_in_json_lines_do(comm, tmp_path):
    needs(comm, 2)
    write_tar(tmp_path / "records.tar")
    settings = _settings(2, "bf", "ready", "job.steps=2")
    lines = train_on(comm, tmp_path, *settings, text=JOB)
    tar = train_on(comm, tmp_path, *settings, 'data.path="records.tar"', text=JOB)
    if comm.rank == 0:
        assert lines[0] == tar[0]
