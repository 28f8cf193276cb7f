"""The chain of layers that a `[model]` of a language model stands for, with drawn weights or those of its folder.

Here the table's keys become the arguments of each family; the mathematics is theirs.
"""

from collections.abc import Callable, Sequence

from hpcpipe.job.models import Gpt, LanguageModel, Llama
from hpcpipe.job.rope import LinearScaling, Llama3Scaling
from hpcpipe.models.gpt import gpt_layers
from hpcpipe.models.hf_load import loaded
from hpcpipe.models.layer import Layer
from hpcpipe.models.llama import llama_layers
from hpcpipe.models.rope import Rope


def language_layers(model: LanguageModel, *, seq_len: int) -> Sequence[Layer]:
    """Return the chain; `seq_len` is the length of the sequences, for the costs."""
    layers = _MAKERS[type(model)](model, seq_len)
    return layers if model.init_folder is None else loaded(layers, model, model.init_folder)


def _gpt(model: LanguageModel, seq_len: int) -> Sequence[Layer]:
    assert isinstance(model, Gpt)
    return gpt_layers(
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        context=model.context,
        vocab_size=model.vocab_size,
        dropout=model.dropout,
        seq_len=seq_len,
        tied=model.tied,
        norm_eps=model.norm_eps,
    )


def _llama(model: LanguageModel, seq_len: int) -> Sequence[Layer]:
    assert isinstance(model, Llama)
    return llama_layers(
        layers=model.layers,
        dim=model.dim,
        heads=model.heads,
        kv_heads=model.kv_heads,
        mlp_dim=model.mlp_dim,
        vocab_size=model.vocab_size,
        rope=_rope(model),
        seq_len=seq_len,
        norm_eps=model.norm_eps,
        attention_bias=model.attention_bias,
        mlp_bias=model.mlp_bias,
        tied=model.tied,
    )


def _rope(model: Llama) -> Rope:
    scaling = model.rope_scaling
    if isinstance(scaling, LinearScaling):
        return Rope(model.head_dim, model.rope_theta, scaling.factor)
    if isinstance(scaling, Llama3Scaling):
        bands = scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_max_position_embeddings
        return Rope(model.head_dim, model.rope_theta, scaling.factor, bands)
    return Rope(model.head_dim, model.rope_theta)


_MAKERS: dict[type, Callable[[LanguageModel, int], Sequence[Layer]]] = {Gpt: _gpt, Llama: _llama}
