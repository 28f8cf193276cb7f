"""Models as chains of layers that a pipeline can cut."""

from hpcpipe.models.gpt import gpt_layers, next_token_loss
from hpcpipe.models.layer import Layer, build, cut, recomputed, ties_of

__all__ = ["Layer", "build", "cut", "gpt_layers", "next_token_loss", "recomputed", "ties_of"]
