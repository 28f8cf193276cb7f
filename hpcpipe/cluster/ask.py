"""Ask a probe in a child process and get its answer, or its error, within a time limit.

It must not know what the probes look at.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hpcpipe.cluster.environment import child_environment
from hpcpipe.cluster.mpiexec import Mpiexec

Answer = dict[str, Any]
"""What a probe found, or `{"error": …}`."""


def ask(probe: str, *arguments: str, timeout_s: float) -> Answer:
    """Ask in an environment in which MPI starts as a world of its own."""
    return _answer(_run(_command(probe, *arguments), child_environment(), timeout_s), timeout_s)


def ask_in_place(probe: str, *arguments: str, timeout_s: float) -> Answer:
    """Ask in this process's place in its launcher's world: the child inherits variables and descriptors."""
    return _answer(_run(_command(probe, *arguments), dict(os.environ), timeout_s, close_fds=False), timeout_s)


def ask_ranks(mpiexec: Mpiexec, ranks: int, *, timeout_s: float) -> list[Answer] | str:
    """Ask the probe `hello` on so many ranks; return what each said, or what went wrong."""
    code, out, err = _run(mpiexec.command(_command("hello"), ranks), mpiexec.environment(), timeout_s)
    answers = _documents(out)
    return answers if code == 0 and len(answers) == ranks else _what(code, out, err, timeout_s)


def _command(probe: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "hpcpipe.cluster.probes", probe, *arguments]


def _run(
    command: Sequence[str], environ: dict[str, str], timeout_s: float, *, close_fds: bool = True
) -> tuple[int | None, str, str]:
    """Return exit code, or None where time ran out, and output; whatever the child started ends with it."""
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        close_fds=close_fds,
        start_new_session=True,
    ) as child:
        try:
            out, err = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
            return None, out, err
        return child.returncode, out, err


def _answer(result: tuple[int | None, str, str], timeout_s: float) -> Answer:
    documents = _documents(result[1])
    return documents[-1] if documents else {"error": _what(*result, timeout_s)}


def _documents(text: str) -> list[Answer]:
    """Return the JSON objects in a text, to which a library may have added lines, and ranks may share a line."""
    found, decoder, position = [], json.JSONDecoder(), 0
    while (position := text.find("{", position)) >= 0:
        try:
            document, position = decoder.raw_decode(text, position)
        except ValueError:
            position += 1
            continue
        if isinstance(document, dict):
            found.append(document)
    return found


def _what(code: int | None, out: str, err: str, timeout_s: float) -> str:
    lines = [line.strip() for line in (err or out).splitlines() if line.strip()]
    said = lines[-1] if lines else "it said nothing"
    if code is None:
        return f"no answer within {timeout_s:.0f} s" + (f"; last words: {said}" if lines else "")
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{said} ({how})"
