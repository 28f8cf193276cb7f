"""The browser in which pages are looked at: Debian's chromium or another that is installed, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@contextmanager
def open_browser() -> Iterator[Any]:
    """Give a headless browser, or skip and say how to get one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="NO PAGE WAS LOOKED AT: pip install playwright")
    program = os.environ.get("HPCPIPE_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(
            "NO PAGE WAS LOOKED AT: no browser here; apt-get install chromium, or set HPCPIPE_BROWSER to one's path"
        )
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=program, args=options)
        yield started
        started.close()
