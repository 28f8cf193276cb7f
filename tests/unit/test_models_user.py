"""Models of a user's own: what may be returned, how they are cut and begun, and a sentence for every usual mistake."""

import shutil
from pathlib import Path

import pytest
import torch

from hpcpipe.job import load_job
from hpcpipe.job.factory import UserCodeError
from hpcpipe.models import build
from hpcpipe.train.layout import Layout
from hpcpipe.train.own_model import own_model, problem_with

HERE = Path(__file__).parent
JOB = """\
[job]
seed = 7
[model]
kind = "own_models:lazily"
[data]
kind = "own_models:data"
[batch]
microbatches = 2
microbatch_size = 3
"""


@pytest.fixture
def load(tmp_path):
    shutil.copy(HERE / "own_models.py", tmp_path)
    path = tmp_path / "job.toml"
    path.write_text(JOB)

    def load(*overrides, model=None, data=None):
        kinds = [f'{table}.kind="own_models:{name}"' for table, name in (("model", model), ("data", data)) if name]
        return load_job(path, [*kinds, *overrides])

    return load


MISTAKES = {
    "no_loss": "returned no loss; return (layers, loss)",
    "nothing": "returned a NoneType; return (layers, loss)",
    "three": "returned a tuple of 3; return (layers, loss)",
    "no_function_as_loss": "returned 'cross_entropy' as the loss",
    "class_as_loss": "CrossEntropyLoss'> as the loss",
    "not_a_layer": "returned an int as layer 1; a list holds either modules or functions",
    "mixed": "returned a Linear as layer 0; a list holds either modules or functions",
    "empty": "returned no layers",
    "builds_no_module": "the function that builds layer.1 returned a Tensor, not a module",
    "without_a_cut": "returned an Uncut, which does not say where it can be cut; give it pipeline_layers",
    "wrong_name": "pipeline_layers names 'block', which the Misspelt does not have; it has enter, blocks, leave",
    "lost_parameters": "the parameters blocks.0.norm.weight, blocks.0.norm.bias",
    "no_tensor": "the output of layer layer.1 (Text)[2] is an object",
    "in_place": "layer layer.1 (ReLU) changes its input in place",
    "batch_norm": "layer.0.1 is a BatchNorm1d: its statistics would be those of a micro-batch",
    "lazy": "layer.0 is a LazyLinear",
    "wrong_shape": "layer layer.1 (Linear) fails when it is called with (3, 12) float32: RuntimeError",
    "long_loss": "the loss returned a tensor of shape (3,)",
    "number_as_loss": "the loss returned a float",
    "raises": "calling the function failed: KeyError: 'missing' (",
    "no_such_function": "own_models.py has no no_such_function; it has",
    "CLASSES": "CLASSES is an int, not a function",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_usual_mistake_gets_a_sentence_with_its_place(load, name):
    problem = problem_with(load(model=name))
    assert problem.startswith(f'[model] kind = "own_models:{name}"')
    assert MISTAKES[name] in problem
    assert "\n" not in problem


def test_a_module_that_cannot_be_imported_is_named_with_its_own_error(load, tmp_path):
    (tmp_path / "broken_model.py").write_text("import nowhere_to_be_found\n")
    problem = problem_with(load('model.kind="broken_model:model"'))
    assert "importing broken_model failed: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in problem
    assert f"{tmp_path / 'broken_model.py'}:1" in problem
    (tmp_path / "package").mkdir()
    problem = problem_with(load('model.kind="package.absent:model"'))
    assert f"no module named package.absent was found in {tmp_path}" in problem


def test_options_that_the_function_does_not_take_are_named(load):
    problem = problem_with(load("model.options={width=3}"))
    assert "calling the function with options width failed: TypeError" in problem
    assert "'width'" in problem


def test_what_the_job_says_of_layers_must_fit_the_model(load):
    assert "has 2 layers, which 3 stages (pipeline x chunks) cannot share" in problem_with(
        load("parallel.pipeline=3", model="two_layers")
    )
    assert "has 9 layers, but [parallel] split sums to 8" in problem_with(
        load("parallel.pipeline=2", "parallel.split=[4,4]")
    )
    assert "has 2 layers, numbered from 0, but [model] recompute names 2" in problem_with(
        load("model.recompute=[[1,2]]", model="two_layers")
    )


@pytest.mark.parametrize("name", ["lazily", "whole", "dicts", "plain_list", "frozen_batch_norm", "real_only"])
def test_initial_parameters_do_not_depend_on_the_cut(load, name):
    job = load(model=name)
    layers = own_model(job).layers

    def parameters(pieces):
        model = own_model(job)
        found = []
        for piece in pieces:
            found.append([module.state_dict() for module in build(layers, piece, seed=7)])
            model.release(keep_loss=False)
        return [value for piece in found for state in piece for value in state.values()]

    middle = len(layers) // 2
    together = parameters([range(len(layers))])
    apart = parameters([range(middle, len(layers)), range(middle)])
    count = len(together) - len(parameters([range(middle)]))
    assert all(torch.equal(a, b) for a, b in zip(together, apart[count:] + apart[:count], strict=True))


def test_layers_of_a_whole_model_have_the_names_of_its_modules(load):
    assert [layer.name for layer in own_model(load(model="whole")).layers] == [
        "enter",
        *(f"blocks.{i}" for i in range(6)),
        "leave",
    ]


def test_a_parameter_that_two_layers_share_is_tied(load):
    layers = own_model(load(model="whole")).layers
    assert [dict(layer.ties) for layer in layers if layer.ties] == [{"weight": "tie.0.weight"}] * 2
    first, *_, last = build(layers, range(len(layers)), seed=7)
    assert first.weight is not last.weight
    assert torch.equal(first.weight, last.weight)


def test_the_cost_of_a_layer_is_its_multiply_adds_and_what_it_writes(load):
    layers = own_model(load(model="two_layers")).layers
    assert [layer.cost for layer in layers] == [12 * 12 + 12, 12 * 5 + 5]  # a sample: products and outputs
    deeper = Layout.of(load("parallel.pipeline=3", "model.options={depth=10}"))
    assert [len(piece) for (piece,) in deeper.pieces] == [4, 4, 5]  # Linear and 3 blocks; 4; 3, Dropout and Linear


def test_what_cannot_be_put_off_is_said_where_it_matters(load):
    split = 'schedule.hint="zb-h1"'
    (notice,) = Layout.of(load(split, "parallel.pipeline=2", model="cannot_wait")).notices
    assert "1.scale (Transposed) are computed with the input gradients" in notice
    assert Layout.of(load('schedule.hint="1f1b"', model="cannot_wait")).notices == []
    assert Layout.of(load(split, "parallel.pipeline=2")).notices == []


def test_a_model_that_looks_at_values_is_called_for_real_and_says_so(load):
    (notice,) = own_model(load(model="real_only")).notices
    assert "called for real" in notice


def test_data_of_a_users_own_with_a_fault_is_named(load, tmp_path):
    (tmp_path / "own_faults.py").write_text(
        "def one():\n    return 1\n\n\ndef text():\n    return ['a', 'b']\n\n\ndef none():\n    return []\n"
    )
    for name, words in (
        ("one", "[data] own_faults:one: returned an int, which cannot be asked for its length"),
        ("text", "[data] own_faults:text: sample 0 is a str, not a pair (input, target)"),
        ("none", "the data set is empty"),
    ):
        assert words in problem_with(load(f'data.kind="own_faults:{name}"'))


def test_a_resolved_job_can_be_read_elsewhere(load, tmp_path):
    job = load(model="two_layers")
    again = type(job).from_resolved(job.to_toml())
    assert again.model.folder == tmp_path == again.data.folder
    assert again.to_toml() == job.to_toml()


def test_a_loss_that_is_wrong_only_with_real_values_is_named_when_it_is_called(load, tmp_path):
    (tmp_path / "late_loss.py").write_text(
        "import own_models, torch\n\n\ndef loss(output, targets):\n"
        "    return output.sum() if output.is_meta else output\n\n\ndef model():\n"
        "    return own_models._layers(), loss\n"
    )
    model = own_model(load('model.kind="late_loss:model"'))
    from hpcpipe.data import Counted

    with pytest.raises(UserCodeError, match=r'late_loss:model": the loss returned a tensor of shape \(3, 5\)'):
        model.loss(torch.zeros(3, 5), Counted(torch.zeros(3), 6.0))
