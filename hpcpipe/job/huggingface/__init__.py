"""Hugging Face folders as jobs see them: config.json, the names and shapes of the tensors, what is in the files.

No tensor is read here and torch is not needed.
"""

from hpcpipe.job.huggingface.config import FolderError, config_of, read_config, settings_of
from hpcpipe.job.huggingface.folder import Weights, open_weights
from hpcpipe.job.huggingface.names import Stored, stored_tensors

__all__ = [
    "FolderError",
    "Stored",
    "Weights",
    "config_of",
    "open_weights",
    "read_config",
    "settings_of",
    "stored_tensors",
]
