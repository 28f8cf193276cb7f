"""The version of this hpcpipe, as it was installed; meson.build holds it."""

from importlib.metadata import version

__version__: str = version("hpcpipe")
