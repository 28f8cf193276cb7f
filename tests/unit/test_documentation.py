"""The documentation as a reader gets it: the site builds strictly, loads nothing, and is searched without a server."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from browser import open_browser

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """HPCPIPE_SITE, where it has just been built, or built here."""
    if "HPCPIPE_SITE" in os.environ:
        return ROOT / os.environ["HPCPIPE_SITE"]
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_no_page_loads_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    loading = re.compile(
        r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="https?:|<link\b[^>]*rel="stylesheet"[^>]*href="https?:"""
    )
    assert not [page.name for page in pages if loading.search(page.read_text(encoding="utf-8"))]
    assert not [css for css in site.rglob("*.css") if re.search(r"url\(.?https?:", css.read_text(encoding="utf-8"))]


def test_the_reference_has_every_table_command_and_exit_code(site):
    """Read from the built pages, so that a part that renders to nothing is missed."""
    from hpcpipe.cli.main import COMMANDS
    from hpcpipe.exit_code import ExitCode
    from hpcpipe.job.schema import TABLES, VARIANTS

    pages = {
        name: (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        for name in ("job-file", "commands", "exit-codes", "python-api")
    }
    for table, section in TABLES.items():
        assert f"<code>[{table}]</code>" in pages["job-file"]
        for each in VARIANTS.get(table, {"": section}).values():
            for key in set(each.model_fields) - {"kind"}:
                assert f"<code>{key}</code>" in pages["job-file"], (table, key)
    for name in COMMANDS:
        assert f"hpcpipe {name}</h3>" in re.sub(r"<a class=.headerlink.*?</a>", "", pages["commands"])
    assert all(f"<td>{int(code)}</td>" in pages["exit-codes"] for code in ExitCode)
    assert "Predict step time, waits and memory" in pages["python-api"]


def test_pictures_and_formulas_of_the_concepts_are_made(site):
    for page in (site / "concepts").glob("*.html"):
        text = page.read_text(encoding="utf-8")
        pictures = re.findall(r'src="([^"]*assets/made/[^"]*\.svg)"', text)
        assert pictures, page.name
        assert "<math" in text, page.name
        assert all((page.parent / picture).resolve().stat().st_size > 1000 for picture in pictures)


def test_the_site_is_searched_from_a_file_and_asks_nobody_for_anything(site):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        asked, faults = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto((site / "concepts" / "caps.html").as_uri(), timeout=60_000)
        _search(page, "bubble")
        assert "accounting" in page.inner_text(".md-search-result__list").lower()
        assert asked
        assert not [url for url in asked if not url.startswith(("file:", "data:"))]
        assert not faults


def test_no_page_is_wider_than_a_phone_and_a_click_on_a_picture_shows_it_alone(site):
    with open_browser() as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        for name in ("index", "start", "schedules", "benchmarks", "reference/job-file", "reference/commands"):
            page.goto((site / f"{name}.html").as_uri(), timeout=60_000)
            assert page.evaluate("document.documentElement.scrollWidth") == 400, name
        page.goto((site / "start.html").as_uri(), timeout=60_000)
        picture = page.locator("a.picture").first
        shown = picture.locator("img").get_attribute("src")
        picture.click(timeout=60_000)
        assert page.url.endswith(shown)


def _search(page, words):
    """Type until the search, which starts by itself beside the page, answers."""
    result = page.locator(".md-search-result__item").first
    for _ in range(20):
        page.locator(".md-search__input").fill("", timeout=60_000)
        page.locator(".md-search__input").press_sequentially(words, timeout=60_000)
        with suppress(Exception):
            result.wait_for(state="visible", timeout=4_000)
            return
    result.wait_for(state="visible", timeout=1_000)
