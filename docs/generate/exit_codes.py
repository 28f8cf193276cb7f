"""The reference of exit codes, made from the enumeration that every command takes them from."""

from hpcpipe.exit_code import ExitCode

MEANINGS = {
    ExitCode.DONE: ("done", ""),
    ExitCode.INTERNAL: ("an error in hpcpipe itself", "`hpcpipe --debug COMMAND …` shows where; please report it"),
    ExitCode.INPUT: ("the input is wrong; nothing was started or written", "the message names file, line and column"),
    ExitCode.ENVIRONMENT: ("the environment does not fit", "`hpcpipe doctor`, by the same srun line"),
    ExitCode.RANK_FAILED: ("a rank failed or died", "its name and traceback stand on stderr and in `failures/`"),
    ExitCode.DIVERGED: ("the training diverged: a loss or gradient is no number", "the message names layer and step"),
    ExitCode.HANG: ("no rank made progress", "`hang/` of the run holds every rank's state"),
    ExitCode.REQUEUE: (
        "stopped by a signal, all ranks after the same step",
        "`hpcpipe run --resume auto`, or a requeue",
    ),
    ExitCode.INTERRUPTED: ("interrupted by Ctrl-C", "the same command again; `run` says how to resume"),
}
HEAD = """\
# Exit codes and errors

Every rank of a run ends with the same code, and so does the command; scripts and batch systems may rely on them.

| code | meaning | what to do |
|---|---|---|
"""
TAIL = """
A run that a signal ended at once has 128 and the signal's number: 143 after SIGTERM, 129 after SIGHUP.

Errors of the user (codes 2, 3 and 75) are sentences without a traceback: what is wrong, the values that clash, where
they were written and what to do. They go to stderr; under a launcher only rank 0 speaks. `hpcpipe --debug COMMAND …`
shows the traceback of what nobody foresaw. `validate`, `simulate`, `analyze`, `doctor` and `bench` print one JSON
document with `--json`, and nothing else on stdout; each names its `format` and `schema_version`.
"""


def page() -> str:
    """Return the page as Markdown."""
    assert set(MEANINGS) == set(ExitCode), "an exit code has no meaning here"
    rows = [f"| {int(code)} | {meaning} | {way} |" for code, (meaning, way) in MEANINGS.items()]
    return HEAD + "\n".join(rows) + "\n" + TAIL
