"""The page of `analyze --html` in a real browser: the marks are where the pipeline's closed forms say, and it loads
nothing from anywhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import open_browser
from click.testing import CliRunner
from job_text import write_job
from matplotlib import image
from synthetic_log import Pipeline, write_run

from hpcpipe.analyze import summarize
from hpcpipe.analyze.html.page import make_page
from hpcpipe.analyze.palette import BLUE, ORANGE
from hpcpipe.analyze.pictures import CHARTS, Subject, measure
from hpcpipe.analyze.prediction import predict
from hpcpipe.cli.analyze import analyze
from hpcpipe.job import load_job
from hpcpipe.simulate.costs import emulated_costs

STAGES, MICROBATCHES, FORWARD, BACKWARD, LATENCY, STEPS = 4, 6, 1_000_000, 2_000_000, 40_000, 3


def write_page(folder: Path, pipeline: Pipeline, *, decided: bool = False) -> Path:
    writers = write_run(folder, pipeline, close=False)
    if decided:
        writers[0].decision(1, "k=2 <b>", "a test decided it")
    for writer in writers:
        writer.close()
    path = folder / "page.html"
    result = CliRunner().invoke(analyze, [str(folder), "--html", str(path)])
    assert result.exit_code == 0, result.output
    assert f"page {path}" in result.stdout
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pipeline = Pipeline(STAGES, MICROBATCHES, FORWARD, BACKWARD, steps=STEPS, latency=lambda *_: LATENCY)
    path = write_page(tmp_path_factory.mktemp("run"), pipeline, decided=True)
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    opened.asked, opened.faults = [], []
    opened.on("request", lambda request: opened.asked.append(request.url))
    opened.on("pageerror", lambda error: opened.faults.append(str(error)))
    opened.on("console", lambda message: opened.faults.append(message.text))
    opened.goto(path.as_uri())
    yield opened
    opened.close()


def wait(page: Any, condition: str) -> None:
    """Wait until it holds, 20 s at most; the page's policy forbids it to evaluate texts itself."""
    look = f"const look = () => ({condition}) ? done() : requestAnimationFrame(look); look()"
    late = f"setTimeout(() => failed(new Error({condition!r})), 20000)"
    page.evaluate(f"new Promise((done, failed) => {{ {late}; {look}; }})")


@pytest.fixture(autouse=True)
def whole_view(page: Any) -> None:
    page.evaluate("gantt.show(0, Infinity)")
    wait(page, "gantt.view()[0] === 0")


def rgb(color: str) -> tuple[int, ...]:
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def shot(page: Any, tmp_path: Path) -> np.ndarray:
    """Return the canvas as the browser shows it, in pixels of red, green and blue."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    path = tmp_path / "canvas.png"
    page.locator("canvas").screenshot(path=path)
    return (255 * image.imread(path)[:, :, :3]).round().astype(int)


def color_at(page: Any, pixels: np.ndarray, time: float, row: int) -> tuple[int, ...]:
    x, y = page.evaluate(f"[gantt.x({time}), gantt.y({row})]")
    return tuple(pixels[round(y), round(x)].tolist())


def test_the_page_loads_nothing_and_reports_no_error(page: Any) -> None:
    assert len(page.asked) == 1
    assert page.faults == []
    assert page.title() == "synthetic · hint 1f1b · dispatch fixed · steps 0 to 2"


def test_tasks_are_drawn_where_the_closed_form_has_them(page: Any, tmp_path: Path) -> None:
    pixels = shot(page, tmp_path)
    last = STAGES - 1
    for stage in range(STAGES):
        begun = stage * (FORWARD + LATENCY)
        assert color_at(page, pixels, begun + 0.25 * FORWARD, stage) == rgb(BLUE)
    turned = last * (FORWARD + LATENCY) + FORWARD
    assert color_at(page, pixels, turned + 0.2 * BACKWARD, last) == rgb(ORANGE)
    # what stage 0 waits for its first gradient is pale, neither colour of work
    assert min(color_at(page, pixels, turned, 0)) > 130


def test_zooming_keeps_marks_in_place_and_shows_what_is_under_the_pointer(page: Any, tmp_path: Path) -> None:
    page.locator("canvas").focus()
    page.keyboard.press("+")
    wait(page, "gantt.view()[0] > 0")
    page.click("button[data-act=all]")
    wait(page, "gantt.view()[0] === 0")
    page.evaluate(f"gantt.show(0, {2 * FORWARD})")
    pixels = shot(page, tmp_path)
    assert color_at(page, pixels, 0.9 * FORWARD, 0) == rgb(BLUE)
    box = page.locator("canvas").bounding_box()
    x, y = page.evaluate(f"[gantt.x({0.5 * FORWARD}), gantt.y(0)]")
    page.mouse.move(box["x"] + x, box["y"] + y)
    said = page.locator(".tip").inner_text()
    assert "stage 0 · rank 0" in said
    assert "forward F0" in said
    assert "1.000 ms" in said
    waiting = page.evaluate(f"gantt.describe(gantt.x({1.2 * FORWARD}), gantt.y(2))")
    assert "warmup until F0 came from rank 1" in waiting


def test_a_turn_of_the_wheel_zooms_about_the_pointer(page: Any) -> None:
    box = page.locator("canvas").bounding_box()
    wall = page.evaluate("gantt.view()[1]")
    x = page.evaluate(f"gantt.x({5 * FORWARD})")
    page.locator("canvas").focus()
    page.mouse.move(box["x"] + x, box["y"] + 40)
    page.mouse.wheel(0, -600)
    wait(page, f"gantt.view()[1] - gantt.view()[0] < {0.5 * wall}")
    assert page.evaluate(f"gantt.x({5 * FORWARD})") == pytest.approx(x, abs=2)


def test_messages_are_drawn_when_asked_for(page: Any, tmp_path: Path) -> None:
    page.evaluate(f"gantt.show(0, {4 * FORWARD})")
    before = shot(page, tmp_path)
    page.check(".arrows")
    after = shot(page, tmp_path)
    page.uncheck(".arrows")
    changed = np.argwhere((before != after).any(axis=2))
    x = page.evaluate(f"gantt.x({FORWARD})")
    assert np.abs(changed[:, 1] - x).min() < 4
    assert len(changed) > 100


def size(page: Any, selector: str) -> tuple[float, float]:
    box = page.locator(selector).first.bounding_box()
    return box["width"], box["height"]


def test_every_chart_is_there_with_its_marks(page: Any) -> None:
    for name in CHARTS:
        width, height = size(page, f"figure#{name} svg")
        assert width > 600
        assert height > 150
    for stage in range(STAGES):
        wide, _ = size(page, f"#class-forward-{stage}")
        double, _ = size(page, f"#class-backward-{stage}")
        assert double == pytest.approx(wide * BACKWARD / FORWARD, rel=0.02)
    assert size(page, "#step-times")[0] > 300
    assert size(page, "#decision-1")[1] > 50
    assert page.locator("[id^=duration-F-]").count() == 1
    assert page.locator("figure#latency image").count() >= 2
    assert page.locator("figure#ready image").count() >= 1
    assert "k=2 <b>" in page.locator("figure#steps").inner_text()


def test_the_report_stands_below_as_text(page: Any) -> None:
    page.locator("summary").click()
    assert "parallel efficiency" in page.locator("pre").inner_text()


def of_128_ranks(folder: Path) -> Subject:
    """Return a simulated step of GPipe on 128 stages with forwards of 1 ms."""
    text = 'model.kind="synthetic"\ndata.kind="synthetic"\nparallel.pipeline=128\nbatch.microbatches=3\n'
    text += 'device={kind="emulated",forward_ms=1,backward_ms=2}\nschedule={hint="gpipe",dispatch="fixed"}\n'
    job = load_job(write_job(folder, text, corpus=None))
    log = predict(job, emulated_costs(job), range(1)).log
    assert log is not None
    return Subject(log, summarize(log), measure(log), "128 ranks")


def test_128_ranks_stay_apart_and_fit_on_a_page(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(make_page(of_128_ranks(tmp_path)), encoding="utf-8")
    assert path.stat().st_size < 3_000_000
    opened = browser.new_page(viewport={"width": 1300, "height": 900})
    opened.goto(path.as_uri())
    pixels = shot(opened, tmp_path)
    rows = [opened.evaluate(f"gantt.y({row})") for row in (0, 1, 127)]
    assert rows[1] - rows[0] >= 6
    assert rows[2] < 1000
    for stage in (0, 64, 127):
        assert color_at(opened, pixels, (stage + 0.5) * 1_000_000, stage) == rgb(BLUE)
    opened.close()
