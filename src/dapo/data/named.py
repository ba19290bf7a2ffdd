r"""Named public sets: where each is published, how it is found, and its rows without stored wording.

A set is read from a local file where a data folder is given, else fetched from Hugging Face at a
pinned commit. Rows give the bare problem and the gold answer, so that the recipe's own template words
them: message lists give the user's text, and the instructions that stored copies carry are taken off.

livecodebench: see dapo.data.livecodebench. olympiad: the pinned file is the configuration of open-ended,
text-only mathematics in English (OE_TO_maths_en_COMP, 674 problems); the copy that Qwen2.5-Math and
simpleRL-reason carry has 675. A row with a modality other than text is refused: then it is another
configuration. A proof problem has no final_answer, so the check of gold answers refuses it. A row's
context, where there is one, stands before its question.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dapo.config.schema import SourceConfig
from dapo.data import livecodebench
from dapo.data.sources import ANSWER_COLUMNS, PROMPT_COLUMNS, Row, column, resolve
from dapo.data.tables import read_file
from dapo.data.wrappers import bare, gsm8k_answer, last_boxed
from dapo.errors import DataError, HubUnreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSet:
    """What is known of a set.

    repo: Hugging Face dataset. revision: commit of it, 40 hex digits; None: the set is only read from
        a local file.
    files: path in the repository at that commit, or a glob over its paths.
    problems: how many there are in that file; then in other copies in common use.
    aliases: other names of a local file (without ending) or folder.
    prompt, answer: columns to look for, in order. Without an answer column, the last \\boxed{} of
        `solution` is the answer.
    judge: what grades it.
    """

    repo: str
    revision: str | None
    files: str
    problems: tuple[int, ...]
    licence: str
    aliases: tuple[str, ...] = ()
    prompt: tuple[str, ...] = (*PROMPT_COLUMNS, "Problem")
    answer: tuple[str, ...] = (*ANSWER_COLUMNS, "Answer")
    judge: Literal["grader", "python-tests"] = "grader"


SETS: dict[str, NamedSet] = {
    "aime24": NamedSet(
        repo="HuggingFaceH4/aime_2024",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        files="data/train-00000-of-00001.parquet",
        problems=(30,),
        licence="none declared; problems (c) MAA",
        aliases=("aime2024", "aime_2024", "aime24/nemo_skills_test", "aime24/ttrl_test"),
    ),
    "aime25": NamedSet(
        repo="math-ai/aime25",
        revision="563bb8404243c5f09de6ec262f2db674fe5bce9b",
        files="test.jsonl",
        problems=(30,),
        licence="Apache-2.0; problems (c) MAA",
        aliases=("aime2025", "aime_2025", "aime25/nemo_skills_test"),
    ),
    "amc23": NamedSet(
        repo="math-ai/amc23",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        files="test-00000-of-00001.parquet",
        problems=(40,),
        licence="none declared; problems (c) MAA",
        aliases=("amc2023", "amc23_test", "amc/amc23_test", "amc/amc23"),
    ),
    "math500": NamedSet(
        repo="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        files="test.jsonl",
        problems=(500,),
        licence="MIT (MATH, and PRM800K for the choice of 500)",
        aliases=("MATH-500", "math_500"),
    ),
    "gsm8k": NamedSet(
        repo="openai/gsm8k",
        revision="740312add88f781978c0658806c59bc2815b9866",
        files="main/test-00000-of-00001.parquet",
        problems=(1319,),
        licence="MIT",
        aliases=("gsm8k_test",),
    ),
    "olympiad": NamedSet(
        repo="Hothan/OlympiadBench",
        revision="91184b52131e7fc9455fef848035173aea8cc01a",
        files="OlympiadBench/OE_TO_maths_en_COMP/OE_TO_maths_en_COMP.parquet",
        problems=(674, 675),
        licence="Apache-2.0",
        aliases=("olympiadbench", "olympiad_bench", "OlympiadBench", "OE_TO_maths_en_COMP"),
        answer=("final_answer", *ANSWER_COLUMNS),
    ),
    "minerva": NamedSet(
        repo="math-ai/minervamath",
        revision="ee46ddc498933b1977577953250ca5c66be64f96",
        files="*test*",
        problems=(272,),
        licence="none declared; problems of MIT OpenCourseWare, CC BY-NC-SA",
        aliases=("minerva_math", "minervamath"),
    ),
    "livecodebench": NamedSet(
        repo="livecodebench/code_generation_lite",
        revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
        files="test6.jsonl",  # what release v6 added; all of its six files have 1055
        problems=(175, 1055),
        licence="CC, problems of AtCoder, Codeforces and LeetCode",
        aliases=("livecodebench/test6", "code_generation_lite", "code_generation_lite/test6", "lcb"),
        prompt=("question_content",),
        answer=(),
        judge="python-tests",
    ),
}
NAMES = tuple(SETS)

_ENDINGS = (".parquet", ".jsonl", ".json")  # of local copies


def is_named(name: str) -> bool:
    """Whether a source is one of the named sets."""
    return name in SETS


def note(name: str, count: int) -> str | None:
    """What to tell of a set's size; None where it is as expected.

    Args:
        name: one of NAMES.
        count: its distinct problems, as read.

    >>> note("aime24", 30), note("aime24", 29)
    (None, 'aime24: 29 problems were read, the published set has 30; figures are not comparable')
    """
    expected = SETS[name].problems
    if count in expected:
        return None
    return f"{name}: {count} problems were read, the published set has {expected[0]}; figures are not comparable"


def read_named(source: SourceConfig, data_dir: str | None) -> Iterator[Row]:
    """The rows of a named set: bare problem and gold answer. `where` is 'aime24 (FILE), row 3'.

    Args:
        source: `source` is one of NAMES; columns other than "auto" overrule the table's.
        data_dir: folder of local files; None: fetch.

    Raises:
        DataError: no such file, nothing fetched, or a row that is not the set's.
    """
    name = source.source
    files = [(str(path), path) for path in [find(name, data_dir)]] if data_dir is not None else fetch(name)
    for label, path in files:
        yield from _rows(source, SETS[name], label, path)


def _rows(source: SourceConfig, known: NamedSet, label: str, path: Path) -> Iterator[Row]:
    name, prompt, answer = source.source, "", ""
    for number, columns in read_file(path):
        where = f"{name} ({label}), row {number}"
        if not prompt:
            prompt = resolve(columns, source.prompt_column, known.prompt, where, "prompt_column")
            answer = _answer_column(source, known, columns, where)
        problem = bare(column(columns, prompt, where, "prompt_column"), where)
        others = {key: value for key, value in columns.items() if key != prompt}
        gold = None
        if known.judge == "python-tests":
            problem, others = livecodebench.convert(problem, others, where)
        else:
            gold = _gold(name, column(columns, answer, where, "answer_column"), answer)
        if name == "olympiad":
            problem = _olympiad(problem, columns, where)
        yield Row(problem=problem, answer=gold, columns=others, source=name, where=where)


def _answer_column(source: SourceConfig, known: NamedSet, columns: dict[str, Any], where: str) -> str:
    if known.judge == "python-tests":
        return ""
    candidates = (*known.answer, "solution")  # whose last \boxed{} is taken
    return resolve(columns, source.answer_column, candidates, where, "answer_column")


def _gold(name: str, answer: Any, column_name: str) -> Any:
    """The gold as the grader reads it; several answers of a list are joined by commas."""
    if isinstance(answer, (list, tuple)) and len(answer) > 1:
        return ", ".join(str(part) for part in answer)
    if not isinstance(answer, str):
        return answer
    if column_name == "solution":
        return last_boxed(answer)
    return gsm8k_answer(answer) if name == "gsm8k" else answer


def _olympiad(problem: str, columns: dict[str, Any], where: str) -> str:
    if columns.get("modality") not in (None, "Text-only"):
        raise DataError(
            f"{where}: modality = {columns['modality']!r}; olympiad is the text-only part in English, "
            "OE_TO_maths_en_COMP: give that file"
        )
    context = columns.get("context")
    return f"{context.strip()}\n\n{problem}" if isinstance(context, str) and context.strip() else problem


def places(name: str) -> list[str]:
    """Where a local file of the set is looked for, relative to the data folder, in order.

    >>> places("gsm8k")[:4]
    ['gsm8k.parquet', 'gsm8k.jsonl', 'gsm8k.json', 'gsm8k/gsm8k.parquet']
    """
    stems = []
    for alias in (name, *SETS[name].aliases):
        stems += [alias] if "/" in alias else [alias, f"{alias}/{alias}", f"{alias}/test"]
    return [stem + ending for stem in stems for ending in _ENDINGS]


def find(name: str, data_dir: str) -> Path:
    """The local file of a set. Raises DataError with all the names that were looked for."""
    folder = Path(data_dir)
    if not folder.is_dir():
        raise DataError(f"{data_dir}: no such folder (--data-dir, eval.data_dir); give the one that holds {name}")
    for place in places(name):
        if (folder / place).is_file():
            return folder / place
    raise DataError(f"{name}: not in {data_dir}; put its file there, looked for as {', '.join(places(name))}")


def fetch(name: str) -> list[tuple[str, Path]]:
    """(label, cached file) of each file of a set at its pinned commit, by huggingface_hub.

    HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE are that library's; a file in its cache is not fetched again.

    Raises:
        DataError: the set has no pinned commit, or the library fails, for whatever reason.
    """
    known = SETS[name]
    if known.revision is None:
        raise DataError(f"{name}: no published commit of it is pinned, so it is not fetched; {_by_hand(name)}")
    tried = f"{known.repo} at {known.revision[:12]}, {known.files}"
    try:
        import huggingface_hub

        paths = [known.files]
        if any(mark in known.files for mark in "*?["):
            listed = huggingface_hub.HfApi().list_repo_files(known.repo, repo_type="dataset", revision=known.revision)
            paths = [p for p in sorted(listed) if fnmatch.fnmatchcase(p, known.files) and p.endswith(_ENDINGS)]
        got = [
            Path(huggingface_hub.hf_hub_download(known.repo, p, repo_type="dataset", revision=known.revision))
            for p in paths
        ]
    except Exception as error:  # of the library, the network, the disk: all end the same way
        said = " ".join(str(error).split()).partition(". ")[0][:200]  # the first sentence says what failed
        reason = f"{type(error).__name__}: {said}"
        raise HubUnreachable(f"{name}: can't be fetched ({tried}): {reason}; {_by_hand(name)}") from None
    if not got:
        raise DataError(f"{name}: can't be fetched ({tried}): no such file there; {_by_hand(name)}")
    return [(f"{known.repo}/{p}", path) for p, path in zip(paths, got, strict=True)]


def _by_hand(name: str) -> str:
    shown = ", ".join(places(name)[:9])
    return f"put the file in a folder and name it with --data-dir DIR (looked for as {shown}, ...)"
