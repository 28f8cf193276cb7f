"""hpcpipe: pipeline-parallel training over MPI. This file only names the version; importing it starts nothing."""

from importlib.metadata import version as _version

__version__: str = _version("hpcpipe")
