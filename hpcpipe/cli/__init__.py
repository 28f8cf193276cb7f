"""The command line: one file a command, which parses and prints and leaves the work to the rooms below."""

from hpcpipe.cli.main import main

__all__ = ["main"]
