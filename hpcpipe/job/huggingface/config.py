"""config.json of a Hugging Face folder and the table `[model]`, one turned into the other.

A setting that would change the mathematics and has no counterpart here is refused by name, never ignored.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcpipe.job.models import Gpt, LanguageModel, Llama
from hpcpipe.job.words import listing, show

CONFIG = "config.json"
Config = Mapping[str, Any]


class FolderError(ValueError):
    """What a folder holds cannot be used; `faults` says all that is wrong with it, a sentence each."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("; ".join(faults))


def read_config(folder: Path) -> dict[str, Any]:
    """Return what config.json of a folder holds.

    Raises
    ------
    FolderError
        There is no such folder or file, or it is no JSON object.
    """
    path = folder / CONFIG
    if not folder.is_dir():
        raise FolderError(f"the folder {folder} does not exist" if not folder.exists() else f"{folder} is no folder")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FolderError(f"{folder} has no {CONFIG}") from None
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise FolderError(f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise FolderError(f"{path} holds no JSON object")
    return config


def settings_of(config: Config) -> dict[str, Any]:
    """Return the keys of `[model]` that a config.json determines, `kind` among them.

    Raises
    ------
    FolderError
        The model is of another family, or has settings that are not supported; all of them are named.
    """
    family = str(config.get("model_type"))
    if family not in _READERS:
        known = listing([show(name) for name in _READERS], "or")
        raise FolderError(f"{CONFIG} has model_type = {show(family)}; {known} can be read")
    faults = list(_refused(config, _FIXED[family]))
    if config.get("quantization_config"):
        faults.append(f"{CONFIG} has a quantization_config; quantised weights cannot be trained")
    reading = _Reading(config)
    settings = _READERS[family](reading)
    if faults or reading.faults:
        raise FolderError(*faults, *reading.faults)
    return settings


def config_of(model: LanguageModel) -> dict[str, Any]:
    """Return a config.json for a model, in the form that transformers reads, older versions too."""
    if isinstance(model, Gpt):
        return {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "activation_function": "gelu_new",
            "attn_pdrop": model.dropout,
            "embd_pdrop": model.dropout,
            "resid_pdrop": model.dropout,
            "layer_norm_epsilon": model.norm_eps,
            "n_embd": model.dim,
            "n_head": model.heads,
            "n_inner": None,
            "n_layer": model.layers,
            "n_positions": model.context,
            "tie_word_embeddings": model.tied,
            "vocab_size": model.vocab_size,
            "bos_token_id": None,
            "eos_token_id": None,
        }
    assert isinstance(model, Llama)
    scaling = model.rope_scaling.model_dump()
    kind = scaling.pop("type")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": model.attention_bias,
        "attention_dropout": 0.0,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "hidden_size": model.dim,
        "intermediate_size": model.mlp_dim,
        "max_position_embeddings": model.context,
        "mlp_bias": model.mlp_bias,
        "num_attention_heads": model.heads,
        "num_hidden_layers": model.layers,
        "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.norm_eps,
        "rope_scaling": None if kind == "none" else {"rope_type": kind, **scaling},
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": model.tied,
        "vocab_size": model.vocab_size,
        "bos_token_id": None,
        "eos_token_id": None,
    }


class _Reading:
    """Takes typed values out of a config and notes what is wrong."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.faults: list[str] = []

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        value = self._value(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
        return int(self._wrong(key, value, "a whole number of at least 1"))

    def number(self, key: str, default: float, config: Config | None = None) -> float:
        """Return a number above 0."""
        value = self._value(key, default, config)
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
        return float(self._wrong(key, value, "a number above 0"))

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self._value(key, default)
        return value if isinstance(value, bool) else bool(self._wrong(key, value, "true or false"))

    def _value(self, key: str, default: Any, config: Config | None = None) -> Any:
        value = (self.config if config is None else config).get(key)
        return default if value is None else value

    def _wrong(self, key: str, value: Any, wanted: str) -> int:
        got = "nothing" if value is None else show(value)
        self.faults.append(f"{key} of {CONFIG} must be {wanted}, got {got}")
        return 1


def _read_gpt(reading: _Reading) -> dict[str, Any]:
    dim, inner = reading.whole("n_embd"), reading.config.get("n_inner")
    if inner not in (None, 4 * dim):
        reading.faults.append(f"{CONFIG} has n_inner = {show(inner)}; here the MLP is 4 n_embd = {4 * dim} wide")
    return {
        "kind": "gpt",
        "layers": reading.whole("n_layer"),
        "dim": dim,
        "heads": reading.whole("n_head"),
        "context": reading.whole("n_positions"),
        "vocab_size": reading.whole("vocab_size"),
        "norm_eps": reading.number("layer_norm_epsilon", 1e-5),
        "tied": reading.flag("tie_word_embeddings", True),
    }


def _read_llama(reading: _Reading) -> dict[str, Any]:
    heads, dim = reading.whole("num_attention_heads"), reading.whole("hidden_size")
    theta, scaling = _read_rope(reading)
    return {
        "kind": "llama",
        "layers": reading.whole("num_hidden_layers"),
        "dim": dim,
        "heads": heads,
        "kv_heads": reading.whole("num_key_value_heads", heads),
        "head_dim": reading.whole("head_dim", max(1, dim // heads)),
        "mlp_dim": reading.whole("intermediate_size"),
        "context": reading.whole("max_position_embeddings", 2048),
        "vocab_size": reading.whole("vocab_size"),
        "norm_eps": reading.number("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_bias": reading.flag("attention_bias", False),
        "mlp_bias": reading.flag("mlp_bias", False),
        "tied": reading.flag("tie_word_embeddings", False),
    }


def _read_rope(reading: _Reading) -> tuple[float, dict[str, Any]]:
    """Return theta and the scaling; transformers 5 writes both as `rope_parameters`, earlier versions apart."""
    new = reading.config.get("rope_parameters")
    given = new if isinstance(new, Mapping) else reading.config.get("rope_scaling") or {}
    where = "rope_parameters" if isinstance(new, Mapping) else "rope_scaling"
    if not isinstance(given, Mapping):
        reading.faults.append(f"{where} of {CONFIG} must be an object, got {show(given)}")
        return 1.0, {"type": "none"}
    theta = reading.number("rope_theta", reading.number("rope_theta", 10000.0), given)
    kind = given.get("rope_type", given.get("type", "default"))
    if given.get("partial_rotary_factor", 1.0) != 1.0:
        reading.faults.append(f"{where} of {CONFIG} has partial_rotary_factor; here all of a head is rotated")
    if kind == "default":
        return theta, {"type": "none"}
    if kind not in _SCALINGS:
        known = listing([show(name) for name in ("default", *_SCALINGS)], "and")
        reading.faults.append(f"{where} of {CONFIG} has rope_type = {show(kind)}; {known} are known")
        return theta, {"type": "none"}
    found: dict[str, Any] = {"type": kind}
    for key in _SCALINGS[kind]:
        if key not in given:
            reading.faults.append(f"{where} of {CONFIG} has no {key}, which {show(kind)} needs")
        else:
            number = reading.number(key, 1.0, given)
            found[key] = int(number) if key == "original_max_position_embeddings" else number
    return theta, found


def _refused(config: Config, fixed: Mapping[str, tuple[Any, ...]]) -> Iterator[str]:
    for key, allowed in fixed.items():
        value = config.get(key)
        if value is not None and value not in allowed:
            yield f"{CONFIG} has {key} = {show(value)}; here it is {listing([show(each) for each in allowed], 'or')}"


_SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}
_FIXED: dict[str, dict[str, tuple[Any, ...]]] = {
    "gpt2": {
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "reorder_and_upcast_attn": (False,),
        "add_cross_attention": (False,),
    },
    "llama": {"hidden_act": ("silu", "swish"), "attention_dropout": (0.0,), "pretraining_tp": (1,)},
}
"""Settings that have one value here, by family."""
_READERS: dict[str, Callable[[_Reading], dict[str, Any]]] = {"gpt2": _read_gpt, "llama": _read_llama}
