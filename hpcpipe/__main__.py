"""`python -m hpcpipe` is the command `hpcpipe`."""

from hpcpipe.cli import main

main(prog_name="hpcpipe")
