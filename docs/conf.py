"""The pages as a site: `make docs` writes build/docs. The pages themselves are plain Markdown, whole on a code host.

The source directory is the repository's root, so that every link means the same here and there. docs/index.md gives the
order of the pages; README.md is the front page.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)#\s]+)\)")
ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)

project = "dapo"
author = "the authors of dapo"
copyright = "the authors of dapo, Apache-2.0"
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/zh-CN/*.md"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True
highlight_language = "text"
html_theme = "furo"
html_title = "dapo"
html_static_path = ["assets"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False


def toctrees() -> str:
    """The sidebar: a part for each heading of docs/index.md, a page for each link below it."""
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    lines = ["```{toctree}", ":hidden:", "", "docs/index", "```"]
    for part in index.split("\n## ")[1:]:
        pages = [(text, os.path.normpath(f"docs/{page}")) for text, page in LINK.findall(part) if page.endswith(".md")]
        names = [f"{text} <{page.removesuffix('.md')}>" for text, page in pages if page != "README.md"]
        lines += ["", "```{toctree}", ":hidden:", f":caption: {part.splitlines()[0]}", "", *names, "```"]
    return "\n".join(lines)


def on_read(app: Any, docname: str, source: list[str]) -> None:
    """The front page gets the sidebar; links to folders of source, which the site does not hold, become plain text.

    Anchors of translated pages, which a code host reads as HTML, become MyST's own, so that a link to one is checked.
    """
    folder = (ROOT / docname).parent

    def plain(found: re.Match[str]) -> str:
        text, target = found.groups()
        return text if (folder / target).is_dir() else found[0]

    source[0] = ANCHOR.sub(r"(\1)=", LINK.sub(plain, source[0]))
    if docname == root_doc:
        source[0] += f"\n\n{toctrees()}\n"


def on_finished(app: Any, error: Exception | None) -> None:
    """A server looks for index.html."""
    if error is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", on_read)
    app.connect("build-finished", on_finished)
