"""Several chunks a rank and split backwards over real ranks: the same bits as plain 1F1B, whatever the timing."""

import pytest
import torch
from layers import by_layer, disturb
from training import load, needs, on_four, on_two, reference, train_on

STEPS = "job.steps=6"
LAYERS = "model.layers=8"
SCHEDULES = [
    ("kfkb", "fixed"),
    ("kfkb", "ready"),
    ("interleaved", "fixed"),
    ("interleaved", "ready"),
    ("zb-h1", "fixed"),
    ("zb-h1", "ready"),
    ("zb-h2", "fixed"),
    ("zb-h2", "ready"),
    ("zbv", "fixed"),
    ("zbv", "ready"),
    ("bfw", "ready"),
    ("critical", "fixed"),
    ("critical", "ready"),
]


def _settings(pipeline, hint, dispatch):
    settings = [STEPS, LAYERS, f"parallel.pipeline={pipeline}"]
    settings += [f'schedule.hint="{hint}"', f'schedule.dispatch="{dispatch}"']
    return [*settings, *(["schedule.k=2"] if hint == "kfkb" else [])]


@pytest.fixture(scope="module")
def plain(comm_of_module, tmp_path_factory):
    """Return the losses of torch alone, and the parameters by layer after training with fixed 1F1B."""
    folder = tmp_path_factory.mktemp("plain")
    pipeline = min(comm_of_module.size, 4)
    losses = reference(load(folder, STEPS, LAYERS))[0] if comm_of_module.rank == 0 else None
    settings = _settings(pipeline, "1f1b", "fixed")
    result = train_on(comm_of_module, folder, *settings)
    return losses, by_layer(comm_of_module, result, load(folder, *settings))


@pytest.fixture(scope="module")
def comm_of_module():
    from mpi4py import MPI

    duplicate = MPI.COMM_WORLD.Dup()
    yield duplicate
    duplicate.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("hint", "dispatch"), SCHEDULES)
def test_every_hint_has_the_losses_of_torch_and_the_bits_of_1f1b(comm, tmp_path, plain, hint, dispatch):
    (on_two if dispatch == "fixed" else on_four)(comm)
    pipeline = min(comm.size, 4)
    seed = SCHEDULES.index((hint, dispatch))
    settings = _settings(pipeline, hint, dispatch)
    result = train_on(comm, tmp_path, *settings, before_step=disturb(seed, longest_s=0.01))
    parameters = by_layer(comm, result, load(tmp_path, *settings))
    if comm.rank == 0:
        losses, expected = plain
        assert result[0] == pytest.approx(losses, rel=1e-6)
        assert parameters.keys() == expected.keys()
        assert all(torch.equal(parameters[name], expected[name]) for name in expected)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    "extra",
    [
        ("model.dropout=0.2",),
        ("batch.microbatches=1",),  # fewer than stages, and no multiple of them
        ("batch.microbatches=5", "parallel.split=[1, 3, 1, 3]"),
        ("parallel.data=2", "comm.bucket_mb=0.02"),
    ],
)
def test_chunks_keep_the_bits_with_dropout_replicas_uneven_pieces_and_few_microbatches(comm, tmp_path, extra):
    needs(comm, 4 if "parallel.data=2" in extra else 2)
    extra = [*extra, "job.steps=3"]
    plain = [setting for setting in extra if "split" not in setting]
    settings = [*_settings(2, "1f1b", "fixed"), *plain]
    expected = by_layer(comm, train_on(comm, tmp_path, *settings), load(tmp_path, *settings))
    for seed, (hint, dispatch) in enumerate([("zbv", "ready"), ("interleaved", "ready"), ("interleaved", "fixed")]):
        settings = [*_settings(2, hint, dispatch), *extra]
        result = train_on(comm, tmp_path, *settings, before_step=disturb(seed, longest_s=0.01))
        parameters = by_layer(comm, result, load(tmp_path, *settings))
        if comm.rank == 0:
            assert parameters.keys() == expected.keys()
            assert all(torch.equal(parameters[name], expected[name]) for name in expected)
