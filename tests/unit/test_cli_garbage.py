"""Python's collector of cycles: it waits while the command starts, and works as usual while a rank trains."""

import subprocess
import sys

_SHOWN = "import gc; print(gc.get_threshold()[0], gc.get_freeze_count() > 0)"


def _told(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    ).stdout.strip()


def test_the_command_lets_cycles_wait() -> None:
    program = f"from hpcpipe.cli import main; main(['validate', '--help'], standalone_mode=False); {_SHOWN}"
    assert _told(program).splitlines()[-1] == "100000 False"


def test_training_frees_cycles_as_soon_as_python_does_and_leaves_the_libraries_alone() -> None:
    program = (
        "from hpcpipe.cli.garbage import collect_as_usual, collect_seldom; import gc; usual = gc.get_threshold()\n"
        f"collect_seldom(); collect_as_usual(); assert gc.get_threshold() == usual; {_SHOWN}"
    )
    usual = _told("import gc; print(gc.get_threshold()[0])")
    assert _told(program) == f"{usual} True"


def test_what_was_made_is_not_looked_through_again_when_python_ends() -> None:
    program = (
        "import atexit, gc; from hpcpipe.cli.garbage import collect_seldom\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > 0)); collect_seldom(); collect_seldom()"
    )
    assert _told(program) == "True"
