"""The tensors of a model as Hugging Face names and shapes them, beside the layers and parameters that they are here.

One parameter is one tensor, whole or transposed, so that both directions are exact; nothing here reads or writes files.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hpcpipe.job.models import Gpt, LanguageModel, Llama


class Stored(NamedTuple):
    """A parameter of a layer, and the tensor that holds it.

    `shape` is the tensor's; `transposed` whether the parameter is its transpose. `copy` is whether it is the head's use
    of the embedding's tensor, which a file holds once.
    """

    layer: str
    parameter: str
    tensor: str
    shape: tuple[int, ...]
    transposed: bool = False
    copy: bool = False

    @property
    def key(self) -> str:
        """The parameter's name in the whole model, such as `block.3.norm_1.weight`."""
        return f"{self.layer}.{self.parameter}"


def stored_tensors(model: LanguageModel) -> tuple[Stored, ...]:
    """Return all parameters of a model in the order of its layers."""
    return tuple(_MAKERS[type(model)](model))


def prefix_of(model: LanguageModel) -> str:
    """Return the prefix of all tensors but the head's, which a file may lack if it was saved without the head."""
    return "transformer." if isinstance(model, Gpt) else "model."


HEAD = "lm_head.weight"
LEFT_OVER = r"(.*\.)?(attn\.(bias|masked_bias)|rotary_emb\.inv_freq)"
"""Constants that early versions of transformers saved with the weights."""


def _gpt(model: LanguageModel) -> Iterator[Stored]:
    assert isinstance(model, Gpt)
    dim, prefix = model.dim, prefix_of(model)
    embedding = (model.vocab_size, dim)
    yield Stored("embedding", "token.weight", f"{prefix}wte.weight", embedding)
    yield Stored("embedding", "position.weight", f"{prefix}wpe.weight", (model.context, dim))
    linears = {  # ours: (theirs, inputs, outputs); theirs multiply from the right
        "attention_in": ("attn.c_attn", dim, 3 * dim),
        "attention_out": ("attn.c_proj", dim, dim),
        "mlp_in": ("mlp.c_fc", dim, 4 * dim),
        "mlp_out": ("mlp.c_proj", 4 * dim, dim),
    }
    for i in range(model.layers):
        block = f"{prefix}h.{i}"
        for norm, name in (("norm_1", "ln_1"), ("norm_2", "ln_2")):
            for part in ("weight", "bias"):
                yield Stored(f"block.{i}", f"{norm}.{part}", f"{block}.{name}.{part}", (dim,))
        for linear, (name, inputs, outputs) in linears.items():
            where = f"{block}.{name}"
            yield Stored(f"block.{i}", f"{linear}.weight", f"{where}.weight", (inputs, outputs), transposed=True)
            yield Stored(f"block.{i}", f"{linear}.bias", f"{where}.bias", (outputs,))
    for part in ("weight", "bias"):
        yield Stored("head", f"norm.{part}", f"{prefix}ln_f.{part}", (dim,))
    yield _head(model, f"{prefix}wte.weight")


def _llama(model: LanguageModel) -> Iterator[Stored]:
    assert isinstance(model, Llama)
    dim, prefix = model.dim, prefix_of(model)
    of_query, of_key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield Stored("embedding", "token.weight", f"{prefix}embed_tokens.weight", (model.vocab_size, dim))
    linears = {  # ours: (theirs, outputs, inputs, with a bias)
        "query": ("self_attn.q_proj", of_query, dim, model.attention_bias),
        "key": ("self_attn.k_proj", of_key, dim, model.attention_bias),
        "value": ("self_attn.v_proj", of_key, dim, model.attention_bias),
        "attention_out": ("self_attn.o_proj", dim, of_query, model.attention_bias),
        "mlp_gate": ("mlp.gate_proj", model.mlp_dim, dim, model.mlp_bias),
        "mlp_in": ("mlp.up_proj", model.mlp_dim, dim, model.mlp_bias),
        "mlp_out": ("mlp.down_proj", dim, model.mlp_dim, model.mlp_bias),
    }
    for i in range(model.layers):
        block = f"{prefix}layers.{i}"
        for norm, name in (("norm_1", "input_layernorm"), ("norm_2", "post_attention_layernorm")):
            yield Stored(f"block.{i}", f"{norm}.weight", f"{block}.{name}.weight", (dim,))
        for linear, (name, outputs, inputs, bias) in linears.items():
            yield Stored(f"block.{i}", f"{linear}.weight", f"{block}.{name}.weight", (outputs, inputs))
            if bias:
                yield Stored(f"block.{i}", f"{linear}.bias", f"{block}.{name}.bias", (outputs,))
    yield Stored("head", "norm.weight", f"{prefix}norm.weight", (dim,))
    yield _head(model, f"{prefix}embed_tokens.weight")


def _head(model: Gpt | Llama, embedding: str) -> Stored:
    shape = (model.vocab_size, model.dim)
    return Stored("head", "project.weight", embedding if model.tied else HEAD, shape, copy=model.tied)


_MAKERS: dict[type, Callable[[LanguageModel], Iterator[Stored]]] = {Gpt: _gpt, Llama: _llama}
