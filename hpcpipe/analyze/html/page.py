"""Puts a run's page together from its report, its pictures and the Gantt's data, and writes it beside its name first.

The page loads nothing, from the network or from files; how a picture looks is decided elsewhere.
"""

import json
from dataclasses import replace
from html import escape
from io import StringIO
from pathlib import Path

from hpcpipe.analyze.describe import title
from hpcpipe.analyze.html.gantt_data import gantt_data, shown_steps
from hpcpipe.analyze.palette import COLLECTIVES, USEFUL_LOOKS, WAITS
from hpcpipe.analyze.pictures import CHARTS, Subject, to_svg
from hpcpipe.analyze.results import Report
from hpcpipe.analyze.whole_file import whole_file
from hpcpipe.analyze.windows import StepChoice

_FOLDER = Path(__file__).parent
_REPORT_WIDTH = 110

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
<ul class="facts">{facts}</ul>
{notes}
<h2>What every rank did{which}</h2>
<section id="gantt">
<div class="tools">
<button data-act="all" title="Show all (0)">All</button>
<button data-act="in" title="Zoom in (+)">+</button><button data-act="out" title="Zoom out (-)">&minus;</button>
<button data-act="left" title="Earlier">&larr;</button><button data-act="right" title="Later">&rarr;</button>
<label><input type="checkbox" class="arrows"> messages</label>
<span class="range"></span>
</div>
<canvas tabindex="0" role="img" aria-label="Gantt of all ranks; the report below holds the same as text"></canvas>
<div class="tip"></div>
</section>
<p class="legend">{legend}</p>
<p class="hint">Drag to move; Ctrl or Shift with the wheel, a double click, or + and &minus; to zoom. Numbers are
micro-batches. White is hpcpipe's own time.</p>
{charts}
<h2>Report</h2>
<details><summary>as text</summary><pre>{report}</pre></details>
<script type="application/json" id="gantt-data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def write_page(path: Path | str, subject: Subject, steps: StepChoice = None) -> None:
    """Write the page; a file of that name is replaced when the new one is whole.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    text = make_page(subject, steps)
    with whole_file(Path(path)) as partial:
        partial.write_text(text, encoding="utf-8")


def make_page(subject: Subject, steps: StepChoice = None) -> str:
    """Return the page's text."""
    report = subject.report
    shown = shown_steps(subject.run, steps)
    which = "" if shown == report.steps else f", {_steps(shown)} of {_steps(report.steps)}"
    headless = replace(subject, headed=False)
    data = json.dumps(gantt_data(subject.run, shown), separators=(",", ":"))
    notes = "".join(f"<li>{escape(gap)}</li>" for gap in report.gaps)
    return _PAGE.format(
        title=escape(title(subject.run, *report.steps)),
        policy=_POLICY,
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        facts=_facts(report),
        notes=f'<ul class="notes">{notes}</ul>' if notes else "",
        which=escape(which),
        legend=_legend(subject),
        charts="\n".join(
            f'<h2>{escape(chart.headline)}</h2>\n<figure id="{name}">{to_svg(name, headless)}</figure>'
            for name, chart in CHARTS.items()
        ),
        report=escape(_as_text(report)),
        data=data.replace("<", "\\u003c"),
        script=(_FOLDER / "gantt.js").read_text(encoding="utf-8"),
    )


def _steps(shown: tuple[int, int]) -> str:
    return f"step {shown[0]}" if shown[0] == shown[1] else f"steps {shown[0]} to {shown[1]}"


def _facts(report: Report) -> str:
    pipeline, data, tensor = report.mesh
    facts = {
        "ranks": f"{report.world_size} ({pipeline} x {data} x {tensor})",
        "steps": str(report.num_steps),
        "median step": f"{report.step_ns.median / 1e6:.2f} ms",
        "not useful": f"{report.bubble_ratio:.1%}",
        "parallel efficiency": f"{report.efficiency.parallel:.3f}",
        "load balance": f"{report.efficiency.load_balance:.3f}",
        "communication": f"{report.efficiency.communication:.3f}",
    }
    return "".join(f"<li>{escape(name)}<b>{escape(value)}</b></li>" for name, value in facts.items())


def _legend(subject: Subject) -> str:
    """Name what the Gantt shows of this run."""
    classes = {**USEFUL_LOOKS, **WAITS}
    looks = [look for code, look in classes.items() if subject.report.classes[code]]
    looks += [look for kind, look in COLLECTIVES.items() if kind in subject.measures.durations]
    return "".join(f'<span><i style="background:{look.color}"></i>{escape(look.name)}</span>' for look in looks)


def _as_text(report: Report) -> str:
    from rich.console import Console

    from hpcpipe.analyze.report import render_text

    console = Console(file=StringIO(), record=True, width=_REPORT_WIDTH, highlight=False)
    console.print(render_text(report))
    return console.export_text()
