"""Every command and snippet of the documentation runs, or says why it does not; and the tester of that can fail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import doc_commands
from dapo.config.load import load_config, recipe_names
from dapo.errors import DapoError
from doc_tester import ROOT, Block, Page, difference, read
from helpers_translations import PAIRS

PAGES = [path for name in ("README.md", "README.zh-CN.md") if (path := ROOT / name).is_file()]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def name_of(path: Path) -> str:
    """README.md, docs/plan.md, ..."""
    return path.relative_to(ROOT).as_posix()


# Without translations: their commands are their page's, which tests/test_translations.py holds them to.
BLOCKS = {
    name: read(path.read_text(encoding="utf-8"))[0] for path in PAGES if (name := name_of(path)) not in PAIRS.values()
}
RUN = [name for name, blocks in BLOCKS.items() if any(block.executes for block in blocks)]


# --- the pages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_says_only_what_exists(path: Path, tmp_path: Path) -> None:
    """Every block is of a known kind; options, recipes and keys of commands exist, also where those are not run."""
    assert checked(path.read_text(encoding="utf-8"), tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", RUN)
def test_a_page_runs(name: str, tmp_path: Path) -> None:
    """Its blocks in order."""
    assert Page(name, (ROOT / name).read_text(encoding="utf-8"), tmp_path).run() == []


def checked(text: str, folder: Path) -> list[str]:
    """Faults of a page that can be seen without running it."""
    blocks, faults = read(text)
    for block in blocks:
        for fault in faults_of(block, folder):
            faults.append(f"line {block.line}: {fault}")
    for command in doc_commands.inline(text):
        faults += [f"in the text: {fault}" for fault in doc_commands.faults(command, folder, named=True)]
    return faults


def faults_of(block: Block, folder: Path) -> list[str]:
    """Of one block; a file is written to the folder, so that later commands may name it."""
    if block.kind == "file":
        path = folder / block.marks["file"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text + "\n", encoding="utf-8")
        return recipe_faults(path) if path.suffix == ".toml" else []
    if block.kind == "toml":
        path = folder / "fragment.toml"
        path.write_text(block.text, encoding="utf-8")
        return recipe_faults(path)
    if block.kind == "commands":
        lines = block.commands(all_of_them=True)
        unused = [f"no line holds {text!r}" for text, _ in block.without if not any(text in line for line in lines)]
        return unused + [fault for line in lines for fault in doc_commands.faults(line, folder)]
    if block.kind == "python":
        try:
            compile(block.text, "snippet", "exec")
        except SyntaxError as error:
            return [f"python: {error}"]
    return []


def recipe_faults(path: Path) -> list[str]:
    """A recipe of its own, or a part of one: that fits one of the shipped."""
    whole = "extends" in path.read_text(encoding="utf-8")
    said = list[str]()
    for layers in [[path]] if whole else [[name, path] for name in ("quickstart", *recipe_names())]:
        try:
            load_config(*layers)
        except DapoError as error:
            said.append(error.message)
        else:
            return []
    return said[:1]


# --- the tester ------------------------------------------------------------------------------------------


def page(*parts: str) -> str:
    """Parts with blank lines between."""
    return "# A page\n\n" + "\n\n".join(parts) + "\n"


def fence(language: str, text: str, mark: str = "") -> str:
    """A fence, with its mark on the line before."""
    return (f"<!-- doctest: {mark} -->\n" if mark else "") + f"```{language}\n{text}\n```"


FAULTY = {  # a page, and what has to be said of it
    "no language": (fence("", "what is this"), "nobody can tell"),
    "another language": (fence("json", "{}"), "nobody can tell"),
    "indented text": ("    what is this", "nobody can tell"),
    "a skip without a reason": (fence("bash", "true", "skip"), "skip needs a reason"),
    "a left out line without a reason": (fence("bash", "true", "without true"), "without needs"),
    "a line left out that is not there": (fence("bash", "true", "without false: why"), "no line holds 'false'"),
    "an unknown mark": (fence("bash", "true", "slwo"), "unknown mark slwo"),
    "a mark of nothing": ("<!-- doctest: slow -->\n\ntext", "no block follows"),
    "a mark at the end": ("<!-- doctest: slow -->", "no block follows"),
    "a code that is no number": (fence("bash", "true", "exit two"), "exit needs a number"),
    "no such command": (fence("bash", "dapo trian tiny"), "no such command"),
    "no such option": (fence("bash", "dapo eval MODEL --kk 3"), "no such option"),
    "no such choice": (fence("bash", "dapo data prepare a.csv -o out --ngram 9"), "'9' is not one of"),
    "too little": (fence("bash", "dapo recipe diff tiny"), "Missing argument"),
    "no such recipe": (fence("bash", "dapo train tinny"), "tinny: no such recipe"),
    "no such key": (fence("bash", "dapo train tiny train.steps=3"), "train.steps"),
    "no such value": (fence("bash", "dapo train tiny sampling.filter=maybe"), "sampling.filter"),
    "values that exclude each other": (fence("bash", "dapo train tiny pipeline.max_staleness=1"), "old_logprobs"),
    "no such set": (fence("bash", "dapo eval MODEL --data amie24"), "amie24: no such evaluation set"),
    "an option in a comment": (fence("bash", "dapo report RUN  # or --alive"), "names --alive"),
    "skipped, and wrong": (fence("bash", "dapo trian tiny", "skip too long"), "no such command"),
    "for a GPU, and wrong": (fence("bash", "dapo train tiny engine.kin=vllm", "gpu"), "engine.kin"),
    "indented": ("    dapo trian tiny", "no such command"),
    "behind another command": (fence("bash", "cd x && .venv/bin/dapo trian"), "no such command"),
    "under torchrun": (fence("bash", "torchrun --nproc-per-node 2 -m dapo train tiny a.b=1"), "a.b"),
    "a continued line": (fence("bash", "dapo train tiny \\\n    a.b=1"), "a.b"),
    "in the text": ("Give `dapo trian tiny`.", "no such command"),
    "no such script": (fence("bash", "python benchmarks/no.py"), "no such file"),
    "a script's option": (fence("bash", "python benchmarks/crash.py --kils 3"), "has no --kils"),
    "no such target": (fence("bash", "make quikstart"), "no such target"),
    "a quote that does not end": (fence("bash", "dapo train 'tiny"), "No closing quotation"),
    "no such key in a recipe": (fence("toml", "[train]\nsteps = 3"), "steps"),
    "no such key in a file": (fence("toml", 'extends = "tiny"\n[trian]\na = 1', "file mine.toml"), "trian"),
    "not Python": (fence("python", "a = ", "skip needs a model"), "python: "),
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_faulty_page_is_told(kind: str, tmp_path: Path) -> None:
    """One fault, and it is that one."""
    text, needle = FAULTY[kind]
    found = checked(page(text), tmp_path)
    assert len(found) == 1, found
    assert needle in found[0]


def test_a_page_without_fault(tmp_path: Path) -> None:
    """Marks, placeholders, lists with indented text, and fences within them are no faults."""
    sound = page(
        fence("bash", "dapo train RECIPE data.source=x.jsonl   # or --resume RUN"),
        "- an item\n\n    its second paragraph",
        fence("", "seven", "skip made by `dapo train quickstart`"),
        "<!-- doctest: setup true -->",
        fence("toml", 'extends = "tiny"\nname = "mine"', "file mine.toml"),
        fence("bash", "dapo plan mine.toml --gpu h100 train.num_steps=3", "gpu; exit 2"),
        "    OMP_NUM_THREADS=1 .venv/bin/dapo train tiny\n    make test",
    )
    assert checked(sound, tmp_path) == []


WRONG = {  # a page, and what its run has to say
    "a command that fails": (fence("bash", "false"), "ended with 1, not 0"),
    "the first of two": (fence("bash", "false\ntrue"), "ended with 1, not 0"),
    "in a pipe": (fence("bash", "false | cat"), "ended with 1, not 0"),
    "indented": ("    sh -c 'exit 3'", "ended with 3, not 0"),
    "another code": (fence("bash", "exit 3", "exit 2"), "ended with 3, not 2"),
    "no failure": (fence("bash", "true", "exit 2"), "ended with 0, not 2"),
    "other output": (fence("bash", "echo six") + "\n\n" + fence("", "seven", "output"), "and the command prints\nsix"),
    "output that lacks a line": (
        fence("bash", "seq 3") + "\n\n" + fence("", "1\n4", "output part"),
        "shows '4', which is not printed",
    ),
    "output in another order": (
        fence("bash", "seq 3") + "\n\n" + fence("", "3\n1", "output part"),
        "shows '1', which is not printed",
    ),
    "a snippet": (fence("python", "a = 1\nassert a == 2"), "AssertionError"),
    "a snippet that leaves": (fence("python", "import os\nos._exit(0)"), "ended the interpreter"),
    "a file of another page": (fence("bash", "cat mine.toml"), "No such file"),
    "a setup": ("<!-- doctest: setup false -->", "ended with 1, not 0"),
    "of a console": (fence("console", "$ false\nsome output"), "ended with 1, not 0"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_page_that_does_not_run_is_told(kind: str, tmp_path: Path) -> None:
    """With its line, and what came out."""
    text, needle = WRONG[kind]
    (fault,) = Page("page.md", page(text), tmp_path).run()
    assert needle in fault
    assert fault.startswith("page.md:")


def test_a_page_that_runs(tmp_path: Path) -> None:
    """In order, in one folder, with one namespace; `dapo` is this checkout."""
    text = page(
        fence("bash", "echo made > made.txt; exit 3", "exit 3"),
        fence("python", "seven = open('made.txt').read()"),
        fence("python", "print(seven, end='')"),
        fence("", "made", "output"),
        fence("bash", "seq 9"),
        fence("", "3\n7", "output part"),
        fence("csv", "a,b", "file sub/table.csv"),
        fence("bash", "cat sub/table.csv\nfalse", "without false: it fails"),
        fence("", "a,b", "output"),
        "    .venv/bin/dapo explain E-CHECK | head -1\n    dapo --version > version.txt",
        fence("", "E-CHECK (exit code 4, dapo.errors.CheckFailed)", "output"),
        fence("bash", "echo slow > slow.txt", "slow"),
        fence("bash", "echo mine >> ~/.bashrc"),
        fence("python", "import os; open(os.path.expanduser('~/snippet'), 'w').close()"),
        fence("bash", "false", "gpu"),
        fence("bash", "false", "network"),
        fence("bash", "false", "skip too long"),
    )
    assert Page("page.md", text, tmp_path).run() == []
    assert (tmp_path / "slow.txt").is_file()
    assert sorted(os.listdir(tmp_path / ".home")) == [".bashrc", "snippet"]  # and not the tester's own home
    assert (tmp_path / "version.txt").read_text().startswith("dapo, version ")
    assert os.listdir(tmp_path / "sub") == ["table.csv"]


def test_what_output_may_differ_in(tmp_path: Path) -> None:
    """Seconds, dates and this folder; no other figure."""
    shown = "step 1/2  acc 8.5%  tok/s 170  s 41.6  left 4:09\nwriting to runs/tiny-20260101-101010"
    got = f"step 1/2  acc 8.5%  tok/s 99  s 2.2  left 0:01  \nwriting to {tmp_path}/runs/tiny-20271231-235959\n"
    assert difference(shown, got, tmp_path) == ""
    assert "8.6%" in difference(shown, got.replace("8.5%", "8.6%"), tmp_path)
