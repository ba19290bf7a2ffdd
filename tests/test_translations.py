"""Translated pages say what their page says: the same commands, keys, figures and links; and the checker can fail."""

from __future__ import annotations

import re

import pytest

from doc_tester import read
from helpers_translations import OWN, PAIRS, ROOT, faults, sections
from test_docs_links import CODE, FENCE

HAN = re.compile(r"[\u4e00-\u9fff]")
BESIDE = re.compile(r"[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9%][\u4e00-\u9fff]")
HALF_WIDTH = re.compile(r"[\u4e00-\u9fff][,;:!?()]|[,;:!?(][\u4e00-\u9fff]")
# What others call it -> what the glossary calls it: one thing has one name on all pages.
VARIANTS = {
    "响应": "回复",
    "提示语": "提示词",
    "优势值": "优势",
    "比率": "概率比",
    "剪裁": "裁剪",
    "动态抽样": "动态采样",
    "检查站": "检查点",
    "存档点": "检查点",
    "食谱": "配方",
    "打分器": "评分器",
    "参考答案": "标准答案",
    "过期度": "陈旧度",
    "推演引擎": "推理引擎",
    "验证集": "留出集",
    "接收率": "接受率",
    "自我检查": "自检",
}


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def rows(path: str) -> list[list[str]]:
    """All rows of a page's tables, heads and rules too."""
    return [row for section in sections(text(path)) for table in section.tables for row in table]


def words(path: str) -> str:
    """A page's prose: without code, and without targets of links."""
    return re.sub(r"\]\([^)]*\)", "]", CODE.sub("", FENCE.sub("", text(path))))


# --- the pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAIRS)
def test_a_translation_is_of_its_page(page: str) -> None:
    """A change of one is a change of both."""
    assert faults(text(page), text(PAIRS[page]), (page, PAIRS[page])) == []


def test_every_translated_page_has_its_page() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "zh-CN").rglob("*.md")}
    assert {*here, "README.zh-CN.md"} == set(PAIRS.values())


@pytest.mark.parametrize("page", PAIRS)
def test_each_links_to_the_other_in_its_first_lines(page: str) -> None:
    for one, other in ((page, PAIRS[page]), (PAIRS[page], page)):
        first = "\n".join(text(one).splitlines()[:4])
        assert re.search(rf"\]\((?:\.\./|zh-CN/)?{re.escape(other.rpartition('/')[2])}\)", first), one


@pytest.mark.parametrize("page", PAIRS)
def test_anchors_are_one_of_a_kind_over_all_translated_pages(page: str) -> None:
    """The site has one table of such names."""
    elsewhere = {s.anchor for other in PAIRS.values() if other != PAIRS[page] for s in sections(text(other))} - {""}
    assert [s.anchor for s in sections(text(PAIRS[page])) if s.anchor in elsewhere] == []


def test_the_glossary_has_the_same_terms_in_both_languages() -> None:
    """Row by row: the English term and the Chinese one."""
    here, there = rows("docs/glossary.md"), rows("docs/zh-CN/glossary.md")
    heads = [row for row in here if row[0] == "term"]
    assert len(heads) == 5
    assert all(row[4] == "中文" for row in heads)
    terms = [(row[0], row[4]) for row in here if row[0] != "term"]
    assert terms == [(row[0], row[4]) for row in there if row[0] != "英文"]


@pytest.mark.parametrize("page", PAIRS.values())
def test_words_are_the_glossarys(page: str) -> None:
    assert [word for word in VARIANTS if word in words(page)] == []


def test_the_glossary_knows_the_words_that_are_asked_for() -> None:
    named = "\n".join(row[4] for row in rows("docs/zh-CN/glossary.md"))
    assert sorted(word for word in VARIANTS.values() if word not in named) == []


@pytest.mark.parametrize("page", PAIRS.values())
def test_it_is_set_as_chinese_is(page: str) -> None:
    """Full-width punctuation beside Chinese words, a blank between them and Latin words or figures."""
    prose = words(page)
    assert HAN.search(prose)
    assert [found[0] for found in HALF_WIDTH.finditer(prose)] == []
    assert [prose[found.start() - 5 : found.end() + 5] for found in BESIDE.finditer(prose)] == []


@pytest.mark.parametrize("page", ["README.zh-CN.md", "docs/zh-CN/troubleshooting.md"])
def test_readers_in_china_find_what_they_need_first(page: str) -> None:
    """In a part of their own, early on the page; no host is named there."""
    part = OWN.search(text(page))
    assert part is not None
    assert len(re.findall("^## ", text(page)[: part.start()], re.MULTILINE)) <= 1
    for name in ("HF_ENDPOINT", "PIP_INDEX_URL", "modelscope:", "model.path", "镜像的地址"):
        assert name in part[0], name
    assert "://" not in part[0]


@pytest.mark.parametrize("page", PAIRS.values())
def test_nothing_runs_in_what_a_translation_has_alone(page: str) -> None:
    """Commands of translations are not run again, so these would not be run at all."""
    own = "\n".join(OWN.findall(text(page)))
    assert [block.text for block in read(own)[0] if block.executes] == []


# --- the checker -----------------------------------------------------------------------------------------

PAIR = ("docs/page.md", "docs/zh-CN/page.md")
PAIRS_MADE_UP = {PAIR[0]: PAIR[1], "docs/other.md": "docs/zh-CN/other.md"}
ENGLISH = """# Page

English | [中文](zh-CN/page.md)

Two of 3 runs, by `train.seed`: [other](other.md#part), [third](third.md), [out](https://example.org/a).

## Do it

    dapo train tiny   # a small one
    dapo report latest

<!-- doctest: output -->
```
step 1  # 2
```

```toml
# a remark
name = "a # b"   # the name
```

| key | means |
|---|---|
| `a.b` | 5 of them ([other](other.md)) |

![curve](picture.svg)

### More

`dapo grade x` again.
"""
CHINESE = """# 页面

[English](../page.md) | 中文

3 次运行中的两次，由 `train.seed` 决定：[别处](https://example.org/a)、[第三](../third.md)、[另一页](other.md#part)。

<!-- only here -->
## 多出来的

只有这里才有 `extra.key` 和 7。

    dapo doctor
<!-- end -->

<a id="do-it"></a>
## 动手

    dapo train tiny   # 一个小的
    dapo report latest

<!-- doctest: output -->
```
step 1  # 2
```

```toml
# 说明
name = "a # b"   # 名字
```

| 键 | 含义 |
|---|---|
| `a.b` | 其中 5 个（[另一页](other.md)） |

![曲线](../picture.svg)

<a id="more"></a>
### 更多

再来一次 `dapo grade x`。
"""
FAULTY = {  # what is done to the translation -> words of the fault
    "command": ("dapo report latest", "dapo report runs/a", "became '    dapo report runs/a'"),
    "command left out": ("    dapo report latest\n", "", "code, marks"),
    "commands in another order": (
        "    dapo train tiny   # 一个小的\n    dapo report latest\n",
        "    dapo report latest\n    dapo train tiny\n",
        "code, marks",
    ),
    "output": ("step 1  # 2", "step 1  # 3", "code, marks"),
    "code": ('"a # b"', '"a # c"', "code, marks"),
    "language of a fence": ("```toml", "```bash", "code, marks"),
    "mark": ("<!-- doctest: output -->\n", "", "code, marks"),
    "other mark": ("doctest: output", "doctest: output part", "code, marks"),
    "key": ("`train.seed`", "`train.sede`", "code words missing: ['train.seed']"),
    "command in the text": ("`dapo grade x`", "`dapo grade y`", "code words"),
    "figure": ("3 次运行", "4 次运行", "figures missing: ['3']"),
    "heading left out": ('<a id="more"></a>\n### 更多\n', "", "headings became 2"),
    "level of a heading": ("### 更多", "## 更多", "heading of level 3 became 2"),
    "anchor": ('<a id="more"></a>\n', "", "anchor '' is not 'more'"),
    "other anchor": ('<a id="more">', '<a id="less">', "anchor 'less' is not 'more'"),
    "code of a table": ("| `a.b`", "| `a.c`", "table: '`a.b`' became '`a.c`'"),
    "figure of a table": ("其中 5 个", "其中 6 个", "table"),
    "row of a table": ("| `a.b` |", "| | |\n| `a.b` |", "tables: other rows or columns"),
    "cell of a table": ("| `a.b` | 其中", "| `a.b` | - | 其中", "tables: other rows or columns"),
    "image": ("picture.svg", "other.svg", "links missing: ['docs/picture.svg#']"),
    "link to the English page": ("(other.md#part)", "(../other.md#part)", "docs/zh-CN/other.md#part"),
    "link without its anchor": ("(other.md#part)", "(other.md)", "docs/zh-CN/other.md#part"),
    "link left out": ("[第三](../third.md)", "第三", "links missing: ['docs/third.md#']"),
    "link out": ("example.org/a", "example.org/b", "https://example.org/a"),
    "more than is marked as its own": ("<!-- only here -->\n", "", "headings became 4"),
}


def test_a_translation_without_fault_has_none() -> None:
    """Words, remarks in commands, the order of words, and what is marked as its own may differ."""
    assert faults(ENGLISH, CHINESE, PAIR, PAIRS_MADE_UP) == []


@pytest.mark.parametrize("fault", FAULTY)
def test_a_fault_of_a_translation_is_found(fault: str) -> None:
    before, after, told = FAULTY[fault]
    assert CHINESE.count(before) == 1
    found = faults(ENGLISH, CHINESE.replace(before, after), PAIR, PAIRS_MADE_UP)
    assert any(told in line for line in found), found


@pytest.mark.parametrize("page", PAIRS)
def test_a_command_changed_on_one_page_alone_is_found(page: str) -> None:
    """Every line in a block of the page, as the tester of commands reads it, changed one by one."""
    lines = text(page).splitlines()
    blocks, _ = read(text(page))
    coded = [block.line - 1 + i for block in blocks for i in range(block.text.count("\n") + 1) if block.text]
    coded = [at for at in coded if lines[at].strip() and not lines[at].lstrip().startswith("#")]
    assert bool(coded) == (page != "docs/glossary.md")
    for at in coded:
        changed = "\n".join([*lines[:at], re.sub(r"(?=\S)", "x", lines[at], count=1), *lines[at + 1 :]])
        assert faults(changed, text(PAIRS[page]), (page, PAIRS[page])), lines[at]
