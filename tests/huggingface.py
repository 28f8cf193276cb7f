"""What the tests of Hugging Face folders share: small models saved by transformers, and ours beside them."""

from pathlib import Path

import torch
import transformers
from torch import nn

from hpcpipe.job.huggingface import read_config, settings_of
from hpcpipe.job.models import MODELS, LanguageModel

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCABULARY, CONTEXT = 300, 64

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def gpt2(**settings):
    """Return a random GPT-2 of transformers."""
    config = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT}
    return _random(transformers.GPT2LMHeadModel, transformers.GPT2Config(**config | _TOKENS | settings))


def llama(**settings):
    """Return a random Llama of transformers."""
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
    }
    return _random(transformers.LlamaForCausalLM, transformers.LlamaConfig(**config | _TOKENS | settings))


_TOKENS = {"bos_token_id": 1, "eos_token_id": 2}


def _random(make, config) -> nn.Module:
    """Draw all parameters, those of the norms too, so that none can be mistaken for another."""
    torch.manual_seed(5)
    model = make(config).eval()
    for name, parameter in model.named_parameters():
        spread = 0.3 if parameter.ndim > 1 else 0.1
        nn.init.normal_(parameter, mean=float("norm" in name or "ln_" in name), std=spread)
    return model


def saved(model: nn.Module, folder: Path, **options) -> Path:
    """Let transformers write the folder."""
    model.save_pretrained(folder, **options)
    return folder


def described(folder: Path) -> LanguageModel:
    """Return the `[model]` that the folder's config.json stands for."""
    settings = settings_of(read_config(folder))
    return MODELS[settings["kind"]].model_validate({**settings, "init": str(folder)})


MODELS_OF_TESTS = {
    "gpt2": gpt2,
    "gpt2 untied": lambda: gpt2(tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    "llama": llama,
    "llama tied": lambda: llama(tie_word_embeddings=True, num_hidden_layers=5, num_key_value_heads=1),
    "llama all heads": lambda: llama(num_key_value_heads=4, rms_norm_eps=1e-2),
    "llama biases": lambda: llama(attention_bias=True, mlp_bias=True),
    "llama wide heads": lambda: llama(head_dim=16),
    "llama 3 rope": lambda: llama(rope_parameters=LLAMA3),
    "linear rope": lambda: llama(rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}),
}
