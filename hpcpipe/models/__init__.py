"""Models as chains of layers that a pipeline can cut."""

from hpcpipe.models.gpt import gpt_layers, next_token_loss
from hpcpipe.models.language import language_layers
from hpcpipe.models.layer import Layer, build, cut, outline, recomputed, ties_of
from hpcpipe.models.llama import llama_layers

__all__ = [
    "Layer",
    "build",
    "cut",
    "gpt_layers",
    "language_layers",
    "llama_layers",
    "next_token_loss",
    "outline",
    "recomputed",
    "ties_of",
]
