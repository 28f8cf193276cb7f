"""`hpcpipe analyze --follow`: looks at a running job again and again until its logs are closed; shows a short table.

On a terminal the table stays in its place; elsewhere each change is a line.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hpcpipe.cli.terminal import make_console, suggest

if TYPE_CHECKING:
    from hpcpipe.analyze.follow import Look

EVERY_S = 2.0
_CAUSES = 4
_STAGES = 32


def follow(path: Path, pause: Callable[[float], None] = time.sleep) -> None:
    """Show the run until it has ended or the user interrupts; a run that has not begun its log is waited for.

    Raises
    ------
    LogError
        There is no such directory.
    """
    from hpcpipe.analyze.follow import look_at
    from hpcpipe.analyze.traces import open_log
    from hpcpipe.events import LogError

    console = make_console()
    if not path.exists():
        open_log(path)
    before: tuple[int, int] | None = None
    still = 0
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                try:
                    seen = look_at(open_log(path))
                except LogError:  # no file yet, or one that is being put in its place
                    _say(live, Text("waiting for the event log"), "waiting for the event log", changed=still == 0)
                    still += 1
                    pause(EVERY_S)
                    continue
                now = seen.rows, seen.done
                still = still + 1 if now == before else 0
                line = _line(seen, still)
                _say(live, Group(_table(seen), Text(line)), line, changed=now != before or seen.ended)
                before = now
                if seen.ended:
                    break
                pause(EVERY_S)
    except KeyboardInterrupt:
        console.print("stopped looking; the run goes on")
        return
    suggest("to see where the time went", "analyze", path)


def _say(live: Live, block: RenderableType, line: str, *, changed: bool) -> None:
    if live.console.is_terminal:
        live.update(block, refresh=True)
    elif changed:
        live.console.print(line, soft_wrap=True)


def _line(seen: "Look", still: int) -> str:
    words = [f"{seen.done}{f' of {seen.planned}' if seen.planned else ''} steps"]
    if seen.report is not None:
        first, last = seen.report.steps
        words.append(f"steps {first} to {last}: {seen.report.step_ns.median / 1e6:.2f} ms a step")
        words.append(f"bubble {seen.report.bubble_ratio:.1%}")
    if seen.ranks < seen.expected:
        words.append(f"{seen.ranks} of {seen.expected} ranks have a log")
    if seen.ended:
        words.append("ended")
    elif still:
        words.append(f"nothing new for {still * EVERY_S:.0f} s")
    return " · ".join(words)


def _table(seen: "Look") -> RenderableType:
    from hpcpipe.analyze.words import SHORT
    from hpcpipe.plan import USEFUL

    report = seen.report
    if report is None:
        return Text("no step is finished yet")
    lost = {each: ns for each, ns in report.classes.items() if each not in USEFUL and ns}
    causes = sorted(sorted(lost, key=lambda each: -lost[each])[:_CAUSES])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("stage", "% useful", *(SHORT[each] for each in causes), "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    stages = sorted({rank.stage for rank in report.ranks})
    for stage in stages[:_STAGES]:
        group = [rank for rank in report.ranks if rank.stage == stage]
        wall = sum(rank.wall_ns for rank in group)
        shares = [sum(rank.useful_ns for rank in group), *(sum(rank.classes[c] for rank in group) for c in causes)]
        flight = max(rank.peak_in_flight for rank in group)
        table.add_row(str(stage), *(f"{100 * share / wall:.1f}" for share in shares), str(flight))
    if len(stages) > _STAGES:
        table.caption = f"and {len(stages) - _STAGES} more stages"
    return table
