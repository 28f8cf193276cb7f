"""Write a small GPT-2 as a Hugging Face folder, for jobs/hugging_face.toml: config.json and model.safetensors.

The names and shapes are those of transformers; matrices of GPT-2 are stored inputs first. The weights are drawn as
GPT-2's are, so what it says means nothing before it is trained.

    python jobs/small_gpt2.py       # writes jobs/small-gpt2
"""

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS, DIM, HEADS, CONTEXT, VOCABULARY = 4, 128, 4, 128, 256


def tensors(seed: int) -> dict[str, np.ndarray]:
    """Return the weights by name, float32."""
    draws = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float = 0.02) -> np.ndarray:
        return (scale * draws.standard_normal((rows, columns))).astype(np.float32)

    found = {"wte.weight": matrix(VOCABULARY, DIM), "wpe.weight": matrix(CONTEXT, DIM)}
    norms = ["ln_f"]
    for block in range(LAYERS):
        name, scale = f"h.{block}", 0.02 / (2 * LAYERS) ** 0.5
        norms += [f"{name}.ln_1", f"{name}.ln_2"]
        for part, columns, rows, spread in (
            ("attn.c_attn", 3 * DIM, DIM, 0.02),
            ("attn.c_proj", DIM, DIM, scale),
            ("mlp.c_fc", 4 * DIM, DIM, 0.02),
            ("mlp.c_proj", DIM, 4 * DIM, scale),
        ):
            found[f"{name}.{part}.weight"] = matrix(rows, columns, spread)
            found[f"{name}.{part}.bias"] = np.zeros(columns, np.float32)
    for name in norms:
        found |= {f"{name}.weight": np.ones(DIM, np.float32), f"{name}.bias": np.zeros(DIM, np.float32)}
    return {f"transformer.{name}": value for name, value in found.items()}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description="Write a small GPT-2 as a Hugging Face folder.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).with_name("small-gpt2"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": LAYERS,
        "n_embd": DIM,
        "n_head": HEADS,
        "n_positions": CONTEXT,
        "vocab_size": VOCABULARY,
        "layer_norm_epsilon": 1e-5,
        "activation_function": "gelu_new",
        "tie_word_embeddings": True,
    }
    (options.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors(options.seed), options.folder / "model.safetensors", metadata={"format": "pt"})
    print(f"wrote {options.folder}")


if __name__ == "__main__":
    main()
