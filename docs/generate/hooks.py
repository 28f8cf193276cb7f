"""What mkdocs calls: pages and pictures that are made from the sources at every build, and formulas as MathML.

It loads nothing from anywhere; a page that cannot be made ends the build.
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import commands
import exit_codes
import gantts
import job_file

import hpcpipe

_TEMPORARY = TemporaryDirectory(prefix="hpcpipe-docs-")
_PERCENT = re.compile(r"(?<=\d) %")
_PICTURE = re.compile(r'(<img [^>]*src="([^"]+\.svg)"[^>]*>)')


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let a fence named `math` hold a formula, and search offline with a script of our own, not one from a CDN."""
    config.extra["polyfills"] = ["assets/search-worker.js"]
    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "math", "format": _formula})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are made, and the job files that pages link to."""
    root = Path(config.config_file_path).parent
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8").replace("](docs/", "](../")
    made: dict[str, str | bytes] = {
        "reference/job-file.md": job_file.page(hpcpipe.__version__),
        "reference/commands.md": commands.page(),
        "reference/exit-codes.md": exit_codes.page(),
        "reference/changelog.md": changelog,
    }
    for name, path in gantts.draw(Path(_TEMPORARY.name)).items():
        made[f"assets/made/{name}.svg"] = path.read_bytes()
    for path in sorted([*root.glob("jobs/*.toml"), *root.glob("jobs/*.py"), *root.glob("jobs/own_model/*.py")]):
        made[path.relative_to(root).as_posix()] = path.read_bytes()
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to job files, which lie beside docs/ in the source tree, lead to those of the site."""
    above = "../" * page.file.src_uri.count("/")
    return markdown.replace(f"]({above}../jobs/", f"]({above}jobs/")


def on_page_content(html: str, **_: Any) -> str:
    """Let a click on a picture show it alone, in its full size, and keep figures and their percent signs together."""
    return _PERCENT.sub("\N{NO-BREAK SPACE}%", _PICTURE.sub(r'<a class="picture" href="\2">\1</a>', html))


def _formula(source: str, *_: Any, **__: Any) -> str:
    """Return a formula as MathML; what the converter does not know it would leave as it is."""
    math = convert(source, display="block")
    assert "\\" not in math, f"not converted: {source}"
    return f'<div class="formula">{math}</div>'
