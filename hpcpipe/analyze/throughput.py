"""Tokens and model FLOPs a second, and what share of the hardware's peak that is.

Model FLOPs count what the mathematics of the model needs and not what is computed again (arXiv 2205.05198, eq. 7).
"""

from dataclasses import dataclass

import numpy as np

from hpcpipe.analyze.describe import Job, look
from hpcpipe.analyze.windows import Windows
from hpcpipe.events import RankLog


@dataclass(frozen=True, slots=True)
class Throughput:
    """0 where it is not known. `mfu`: model FLOPs utilisation, of `peak_tflops` TFLOP/s for every rank."""

    tokens_per_step: float = 0.0
    tokens_per_s: float = 0.0
    model_flops_per_token: float = 0.0
    model_tflops_per_s: float = 0.0
    peak_tflops: float = 0.0
    mfu: float = 0.0


def throughput(rank: RankLog, job: Job, windows: Windows, *, peak_tflops: float | None) -> Throughput:
    """Return the speed in the windows, from the tokens that one rank's log gives for the global batch."""
    chosen = np.isin(rank.steps.step, windows.steps)
    tokens = int(rank.steps.tokens[chosen].sum())
    seconds = windows.wall / 1e9
    flops = flops_per_token(job) or 0.0
    rate = tokens * flops / seconds / 1e12
    peak = peak_tflops or 0.0
    return Throughput(
        tokens_per_step=tokens / len(windows),
        tokens_per_s=tokens / seconds,
        model_flops_per_token=flops,
        model_tflops_per_s=rate,
        peak_tflops=peak,
        mfu=rate / (peak * rank.header.world_size) if peak else 0.0,
    )


def flops_per_token(job: Job) -> float | None:
    """Return the FLOPs of forward and backward of a GPT for a token; None for another model, or where sizes lack.

    72 l h² (1 + s / 6h + V / 12lh) with l layers of width h, sequences of s tokens and V words (arXiv 2205.05198).
    """
    if look(job, "model", "kind") != "gpt":
        return None
    layers, width, words = (look(job, "model", key) for key in ("layers", "dim", "vocab_size"))
    sequence = look(job, "data", "seq_len") or look(job, "model", "context")
    if not all(isinstance(size, int) and size > 0 for size in (layers, width, words, sequence)):
        return None
    return float(72 * layers * width**2 + 12 * layers * width * sequence + 6 * words * width)  # type: ignore[operator]
