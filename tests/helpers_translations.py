"""What a page and its translation have in common, and where they differ.

A translation has the page's commands, code, headings, marks, images, tables, links, keys and figures, section by
section; words alone are its own. What stands between `<!-- only here -->` and `<!-- end -->` is for its readers alone
and is not compared. Before each heading below the first stands the English heading's anchor, `<a id="..."></a>`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from test_docs_links import CODE, LINK, slug

ROOT = Path(__file__).parents[1]
PAIRS = {
    "README.md": "README.zh-CN.md",
    "docs/quickstart.md": "docs/zh-CN/quickstart.md",
    "docs/troubleshooting.md": "docs/zh-CN/troubleshooting.md",
    "docs/glossary.md": "docs/zh-CN/glossary.md",
}
OWN = re.compile(r"<!-- only here -->\n.*?<!-- end -->\n", re.DOTALL)
ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$')
FENCE = re.compile(r"^(`{3,}|~{3,})(.*)$")
QUOTED = re.compile(r"""("[^"\n]*"|'[^'\n]*')|(?:^|(?<=\s))#.*$""")
CELL = re.compile(r"(?<!\\)\|")
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*")


@dataclass
class Section:
    """A heading, and what stands below it down to the next; all of a page before its first heading is one too.

    level, title: of the heading. anchor: the explicit one before it. parts: code blocks, marks and images in order.
    tables: their rows, each a list of cells. prose: the lines that are none of these.
    """

    level: int = 0
    title: str = ""
    anchor: str = ""
    parts: list[str] = field(default_factory=list)
    tables: list[list[list[str]]] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)


def bare(line: str) -> str:
    """A line of a command or of code without its comment; a # within quotes begins none.

    >>> bare('dapo chat "a # b"   # talk')
    'dapo chat "a # b"'
    """
    return QUOTED.sub(lambda found: found[1] or "", line).rstrip()


def sections(page: str) -> list[Section]:
    """A page by its headings."""
    lines, found = iter(OWN.sub("", page).splitlines()), [Section()]
    blank, anchor, in_table, in_code = True, "", False, False
    for line in lines:
        now = found[-1]
        heading, opening, marked = re.match(r"(#{1,6}) +(.*)", line), FENCE.match(line), ANCHOR.match(line)
        table, in_table = in_table, line.startswith("|")
        in_code = line.startswith("    ") and (blank or in_code)
        if marked:
            anchor = marked[1]
        elif heading:
            found.append(Section(level=len(heading[1]), title=heading[2], anchor=anchor))
            anchor = ""
        elif opening:
            now.parts.append(fence(lines, opening[1], opening[2].strip()))
        elif in_code:
            now.parts.append("    " + bare(line[4:]))
        elif in_table:
            cells = [cell.strip() for cell in CELL.split(line)[1:-1]]
            now.tables = [*now.tables[:-1], [*now.tables[-1], cells]] if table else [*now.tables, [cells]]
        elif line.startswith("<!--"):
            now.parts.append(line)
        else:
            now.prose.append(line)
        blank = not line.strip() or line.startswith(("<!--", "#"))  # after these too, what is indented is code
    return found


def fence(lines: Iterator[str], mark: str, language: str) -> str:
    """The rest of a fence; of a language, without comments. What a command prints has no language and stays whole."""
    body = list[str]()
    for line in lines:
        if line.startswith(mark):
            break
        body.append(bare(line) if language else line)
    return "\n".join([f"{mark}{language}", *body])


def spans(text: str) -> Counter[str]:
    """Words in code."""
    return Counter(" ".join(found[0].strip("`").split()) for found in CODE.finditer(text))


def numbers(text: str) -> Counter[str]:
    """Figures outside of code and links."""
    return Counter(NUMBER.findall(CODE.sub("", re.sub(r"\]\([^)]*\)", "]", text))))


def links(text: str, path: str, pairs: dict[str, str]) -> Counter[str]:
    """Targets, from the repository's root, as the translation has them; without those between the two pages."""
    found = Counter[str]()
    between = [{page, translation} for page, translation in pairs.items()]
    for target in LINK.findall(CODE.sub("x", text)):
        file, _, anchor = target.partition("#")
        if not re.match(r"[a-z]+:", target):
            file = os.path.normpath(os.path.join(os.path.dirname(path), file)) if file else path
        if anchor or {path, file} not in between:
            found[f"{pairs.get(file, file) if path in pairs else file}#{anchor}"] += 1
    return found


def unlike(what: str, here: Counter[str], there: Counter[str]) -> Iterator[str]:
    """What one of two has and the other has not."""
    for name, more in (("missing", here - there), ("too much", there - here)):
        if more:
            yield f"{what} {name}: {sorted(more.elements())}"


def table_faults(here: Section, there: Section) -> Iterator[str]:
    """Tables cell by cell: code and figures are the same, words may differ."""
    if [[len(row) for row in table] for table in here.tables] != [
        [len(row) for row in table] for table in there.tables
    ]:
        yield "tables: other rows or columns"
        return
    for table, translated in zip(here.tables, there.tables, strict=True):
        for row, other in zip(table, translated, strict=True):
            for cell, word in zip(row, other, strict=True):
                if spans(cell) != spans(word) or numbers(cell) != numbers(word) or bool(cell) != bool(word):
                    yield f"table: {cell!r} became {word!r}"


def section_faults(here: Section, there: Section, pair: tuple[str, str], pairs: dict[str, str]) -> Iterator[str]:
    """Of one section."""
    if here.level != there.level:
        yield f"heading of level {here.level} became {there.level}"
    if here.level > 1 and there.anchor != slug(here.title):
        yield f"anchor {there.anchor!r} is not {slug(here.title)!r}"
    if here.parts != there.parts:
        first = next((i for i, (a, b) in enumerate(zip(here.parts, there.parts, strict=False)) if a != b), None)
        yield "code, marks: " + (
            f"{here.parts[first]!r} became {there.parts[first]!r}"
            if first is not None
            else f"{len(here.parts)} became {len(there.parts)}"
        )
    yield from table_faults(here, there)
    one, two = ("\n".join([section.title, *section.prose]) for section in (here, there))
    yield from unlike("code words", spans(one), spans(two))
    yield from unlike("figures", numbers(one), numbers(two))
    one, two = ("\n".join([s.title, *s.prose, *(c for t in s.tables for r in t for c in r)]) for s in (here, there))
    yield from unlike("links", links(one, pair[0], pairs), links(two, pair[1], pairs))


def faults(page: str, translation: str, pair: tuple[str, str], pairs: dict[str, str] = PAIRS) -> list[str]:
    """Where a translation is not the page's, each with its section. pair: both pages' paths from the root."""
    here, there = sections(page), sections(translation)
    if len(here) != len(there):
        return [f"{len(here) - 1} headings became {len(there) - 1}"]
    return [
        f"{one.title or 'before the first heading'}: {fault}"
        for one, two in zip(here, there, strict=True)
        for fault in section_faults(one, two, pair, pairs)
    ]
