"""Data files to micro-batches."""

from hpcpipe.data.text import TextBatches

__all__ = ["TextBatches"]
