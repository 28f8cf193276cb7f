"""Models as chains of layers that a pipeline can cut."""

from hpcpipe.models.gpt import gpt_layers, next_token_loss
from hpcpipe.models.language import language_layers
from hpcpipe.models.layer import Layer, build, cut, outline, recomputed, ties_of
from hpcpipe.models.llama import llama_layers
from hpcpipe.models.vlm import Load, VlmSizes, layer_costs, text_loss, vlm_layers

__all__ = [
    "Layer",
    "Load",
    "VlmSizes",
    "build",
    "cut",
    "gpt_layers",
    "language_layers",
    "layer_costs",
    "llama_layers",
    "next_token_loss",
    "outline",
    "recomputed",
    "text_loss",
    "ties_of",
    "vlm_layers",
]
