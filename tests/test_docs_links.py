"""The documentation as files: every link leads somewhere, and every page stands in the order of pages."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}|~{3,}).*?^\1\s*$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def prose(page: str) -> str:
    """The page without its code."""
    return CODE.sub("", FENCE.sub("", page))


def slug(heading: str) -> str:
    """The anchor that a code host and the site give a heading.

    >>> slug("`[[data.source]]` and *Ratio* not 1")
    'datasource-and-ratio-not-1'
    """
    return re.sub(r"[^\w\- ]", "", heading.replace("*", "").strip().lower()).replace(" ", "-")


def anchors(page: str) -> set[str]:
    """All anchors of a page; a heading that comes again is numbered."""
    seen: dict[str, int] = {}
    found = set()
    for name in map(slug, HEADING.findall(FENCE.sub("", page))):
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def faults(path: Path, text: str) -> Iterator[str]:
    """Relative links of a page that lead nowhere."""
    for target in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        other = (path.parent / file).resolve() if file else path
        if file and not other.exists():
            yield f"{target}: no such file"
        elif anchor and anchor not in anchors(text if other == path else other.read_text(encoding="utf-8")):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert list(faults(path, path.read_text(encoding="utf-8"))) == []


def test_a_link_that_leads_nowhere_is_found() -> None:
    page = "# A `b.c` d\n[x](#a-bc-d) [y](none.md) [z](#other) `[code](gone.md)`\n```\n[w](gone.md)\n```\n"
    assert list(faults(ROOT / "docs" / "made-up.md", page)) == ["none.md: no such file", "#other: no such heading"]


def test_every_page_stands_in_the_order_of_pages() -> None:
    index = ROOT / "docs" / "index.md"
    named = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert [path for path in PAGES if path not in named and path != index] == []


def test_the_site_can_be_made_of_what_is_asked_for() -> None:
    """The exact versions of docs/requirements.txt are of what the extra `docs` names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = {re.match(r"[\w-]+", words)[0] for words in project["optional-dependencies"]["docs"]}  # type: ignore[index]
    pinned = (ROOT / "docs" / "requirements.txt").read_text(encoding="utf-8").lower()
    assert asked == {name for name in asked if f"\n{name}==" in pinned}
