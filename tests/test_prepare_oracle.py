"""`dapo data prepare` against plain re-implementations: what is dropped, for which reason, in which order.

Nothing here uses the internals of near-duplicates, duplicates or contamination; the oracles work on generated
texts whose meaning is known beforehand, by brute force.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.data.prepare.text import figures, normalise, words
from dapo.data.prepare.validate import REASONS
from dapo.data.template import DAPO_WORDING
from dapo.data.wrappers import bare
from helpers_run import quiet_dapo, write_rows


class Prepared(NamedTuple):
    """What a run wrote: rows of the table, card, dropped rows."""

    rows: list[dict[str, Any]]
    card: dict[str, Any]
    rejects: list[dict[str, Any]]

    @property
    def places(self) -> list[tuple[str, int]]:
        """(file name, row) of what is left."""
        return [(Path(row["origin"]).name, row["origin_row"]) for row in self.rows]

    def gone(self) -> dict[tuple[str, int], str]:
        """(file name, row) of what was dropped -> reason."""
        return {(Path(row["file"]).name, row["row"]): row["reason"] for row in self.rejects}


def prepare(out: Path, *words: str | Path) -> Prepared:
    """Runs the command, which has to succeed, and checks what holds for every run."""
    rejects = out.with_name(out.name + ".rejects")
    code, _, err = quiet_dapo("data", "prepare", *words, "-o", out, "--rejects", rejects)
    assert code == 0, err
    rows = pyarrow.parquet.read_table(out / "train.parquet").to_pylist()
    card = json.loads((out / "card.json").read_text(encoding="utf-8"))
    dropped = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    made = Prepared(rows, card, dropped)
    check_chain(made)
    return made


def check_chain(made: Prepared) -> None:
    """Counts form a chain, the rejects are what was dropped, and every row is accounted for exactly once."""
    steps = made.card["steps"]
    assert steps[0]["step"] == "read"
    assert steps[0]["rows_in"] == sum(source["rows"] for source in made.card["sources"])
    for before, step in pairwise(steps):
        assert step["rows_in"] == before["rows_out"]
    for step in steps:
        assert step["rows_in"] - sum(step["dropped"].values()) == step["rows_out"] >= 0
        counted = Counter(row["reason"] for row in made.rejects if row["step"] == step["step"])
        assert counted == Counter(step["dropped"]), step
    assert steps[-1]["rows_out"] == made.card["rows"] == len(made.rows)
    everywhere = made.places + [(Path(row["file"]).name, row["row"]) for row in made.rejects]
    assert len(everywhere) == steps[0]["rows_in"] == len(set(everywhere))


def plain(problem: str, answer: Any = "7") -> dict[str, Any]:
    """A row."""
    return {"problem": problem, "answer": answer}


# --- exact and normalised duplicates, conflicts ----------------------------------------------------


class Said(NamedTuple):
    """A generated row: what it asks, how it is written, its answer and that answer's value."""

    meaning: tuple[Any, ...]
    text: str
    answer: str
    value: Fraction


def said(rng: random.Random) -> Said:
    """One of few meanings in one of many spellings; spelling and meaning are chosen apart."""
    a, b = rng.choice((1, 2, 12)), rng.choice((3, 35))
    power = rng.choice((1, 2, 12, 21))
    sign, relation = rng.choice("+-"), rng.choice(("=", r"\leq", "<"))
    decimal = rng.choice(("1.5", "15", "150"))
    spelt = {
        r"\leq": rng.choice((r"\leq ", r"\le ", "≤")),
    }.get(relation, relation)
    fraction = rng.choice((rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a}}}{{{b}}}", rf"\tfrac{{ {a} }}{{ {b} }}"))
    minus = rng.choice((sign, "−" if sign == "-" else sign))
    gap = rng.choice(("", " "))
    formula = f"{fraction}x^{{{power}}}{gap}{minus}{gap}{decimal}{gap}{spelt}{gap}0"
    if rng.random() < 0.5:
        formula = formula.replace("x^", "x ^")
    opening, closing = rng.choice((("$", "$"), (r"\(", r"\)"), ("", "")))
    verb = rng.choice(("Solve", "solve", "SOLVE"))
    text = f"{verb}{rng.choice((' ', '  ', chr(10)))}{opening}{formula}{closing}{rng.choice(('', '.', ' .'))}"
    value = Fraction(rng.choice((1, 1, 1, 2)), 2)
    answer = rng.choice(("1", "1.0") if value == 1 else ("0.5", "1/2", r"\frac{1}{2}"))
    return Said((a, b, power, sign, relation, decimal), text, answer, value)


def expected_duplicates(rows: Sequence[Said], conflicts: str) -> list[str | None]:
    """For each row why it is dropped, by definition."""
    texts: set[str] = set()
    first: dict[tuple[Any, ...], int] = {}
    reasons: list[str | None] = []
    for index, row in enumerate(rows):
        if row.text in texts:
            reasons.append("exact_duplicate")
        elif row.meaning in first:
            reasons.append("normalised_duplicate")
        else:
            first[row.meaning] = index
            reasons.append(None)
        texts.add(row.text)
    values: dict[tuple[Any, ...], set[Fraction]] = {}
    for row in rows:
        values.setdefault(row.meaning, set()).add(row.value)
    for meaning, index in first.items():
        if len(values[meaning]) > 1 and conflicts == "drop":
            reasons[index] = "conflicting_answers"
    return reasons


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("conflicts", ["drop", "first"])
def test_duplicates_and_conflicts_are_those_of_the_definition(tmp_path: Path, seed: int, conflicts: str) -> None:
    """Spellings of one meaning are one problem; other signs, numbers or relations are not. In any order, and split."""
    rng = random.Random(seed)
    made = [said(rng) for _ in range(120)]
    made += rng.sample(made, 30)
    for order in range(2):
        rng.shuffle(made)
        for parts in (1, 3):
            size = -(-len(made) // parts)
            pieces = [made[at : at + size] for at in range(0, len(made), size)]
            names = [
                write_rows(tmp_path / f"{order}-{parts}-{n}.jsonl", [plain(r.text, r.answer) for r in piece])
                for n, piece in enumerate(pieces)
            ]
            out = prepare(
                tmp_path / f"out{order}{parts}", *names, "--conflicts", conflicts, "--near-duplicates", "keep"
            )
            places = [
                (name.name, n) for name, piece in zip(names, pieces, strict=True) for n in range(1, len(piece) + 1)
            ]
            wanted = expected_duplicates(made, conflicts)
            assert out.gone() == {place: why for place, why in zip(places, wanted, strict=True) if why}
            assert out.places == [place for place, why in zip(places, wanted, strict=True) if not why]
            values: dict[tuple[Any, ...], set[Fraction]] = {}
            same: dict[str, set[Fraction]] = {}
            for row in made:
                values.setdefault(row.meaning, set()).add(row.value)
                same.setdefault(row.text, set()).add(row.value)
            several = {meaning for meaning, found in values.items() if len(found) > 1}
            assert out.card["duplicates"]["problems_with_several_answers"] == len(several) == len(out.card["conflicts"])
            assert out.card["duplicates"]["distinct_texts"] == len({row.text for row in made})
            exact = {row.meaning for row in made if len(same[row.text]) > 1}
            assert out.card["duplicates"]["of_them_with_the_very_same_text"] == len(exact)


# --- near-duplicates -------------------------------------------------------------------------------

VOCABULARY = [a + b + c for a in "bdgklm" for b in "aeiou" for c in "nrst"]


def runs(tokens: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """The distinct runs of n tokens."""
    return {tuple(tokens[at : at + n]) for at in range(len(tokens) - n + 1)}


def jaccard(one: str, other: str) -> float:
    """Share of common runs of three tokens; the texts of these tests have blanks between all tokens."""
    a, b = (runs(text.split(), 3) or {tuple(text.split())} for text in (one, other))
    return len(a & b) / len(a | b)


def figures_of(text: str) -> tuple[list[str], list[str]]:
    """Numbers and signs in order."""
    tokens = text.split()
    return [t for t in tokens if t[0].isdigit()], [t for t in tokens if not t[0].isalnum()]


def wordy(rng: random.Random, length: int = 40) -> list[str]:
    """Tokens: words, some numbers and signs."""
    tokens = [rng.choice(VOCABULARY) for _ in range(length)]
    for place in rng.sample(range(length), 4):
        tokens[place] = rng.choice(("3", "17", "2.5", "+", "-", "="))
    return tokens


def edited(rng: random.Random, tokens: Sequence[str]) -> list[str]:
    """Some tokens changed: mostly words, sometimes a number or a sign."""
    made = list(tokens)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        place = rng.randrange(len(made))
        if made[place][0].isalpha():
            made[place] = rng.choice(VOCABULARY)
        elif rng.random() < 0.3:
            made[place] = rng.choice(("4", "18", "+", "-"))
    return made


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0.6, 0.8])
def test_near_duplicates_are_those_of_brute_force(tmp_path: Path, seed: int, threshold: float) -> None:
    """Each drop has an earlier kept twin by exact Jaccard; what is surely found (0.9 and above) is never kept."""
    rng = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(40):
        texts.append(wordy(rng))
        texts += [edited(rng, rng.choice(texts[-3:])) for _ in range(rng.choice((0, 2, 4)))]
    rng.shuffle(texts)
    lines = list(dict.fromkeys(" ".join(text) for text in texts))
    answers = [rng.choice(("5", "5", "5.0", "6")) for _ in lines]
    file = write_rows(tmp_path / "a.jsonl", map(plain, lines, answers))
    out = prepare(tmp_path / "out", file, "--similarity", str(threshold))
    gone = out.gone()
    assert set(gone.values()) <= {"near_duplicate"}
    assert len(gone) > 10
    kept = [number for number in range(len(lines)) if ("a.jsonl", number + 1) not in gone]

    def twins(number: int, least: float) -> list[int]:
        return [
            other
            for other in kept
            if other < number
            and float(answers[other]) == float(answers[number])
            and figures_of(lines[other]) == figures_of(lines[number])
            and jaccard(lines[other], lines[number]) >= least
        ]

    for row in out.rejects:
        detail = row["detail"]
        other = int(detail["like"].rpartition(" row ")[2]) - 1
        assert other in twins(row["row"] - 1, threshold)
        assert detail["similarity"] == pytest.approx(jaccard(lines[other], lines[row["row"] - 1]), abs=1e-4)
    assert not [number for number in kept if twins(number, 0.9)]
    if threshold == 0.8:  # a miss at 0.8 has a chance of 0.002, and the hash functions are fixed
        assert not [number for number in kept if twins(number, 0.8)]
    for pair in out.card["near_duplicates_with_other_answers"]:
        one, other = (int(pair[side].rpartition(" row ")[2]) - 1 for side in ("row", "like"))
        assert float(answers[one]) != float(answers[other])
        assert figures_of(lines[one]) == figures_of(lines[other])
        assert jaccard(lines[one], lines[other]) >= threshold


def test_near_duplicates_can_be_kept(tmp_path: Path) -> None:
    """--near-duplicates keep takes the step out."""
    text = " ".join(VOCABULARY[:60])
    file = write_rows(tmp_path / "a.jsonl", [plain(text), plain(text + " ban")])
    assert len(prepare(tmp_path / "one", file).rows) == 1
    out = prepare(tmp_path / "two", file, "--near-duplicates", "keep")
    assert len(out.rows) == 2
    assert "near_duplicates" not in [step["step"] for step in out.card["steps"]]


def test_a_chain_of_likeness_is_cut_greedily(tmp_path: Path) -> None:
    """A row is dropped for an earlier one that stays, and not for one that is itself dropped."""
    base = VOCABULARY[:50]
    chain = [" ".join(base[step * 2 :] + VOCABULARY[60 : 60 + step * 2]) for step in range(6)]
    out = prepare(tmp_path / "out", write_rows(tmp_path / "a.jsonl", map(plain, chain)))
    kept: list[int] = []
    for number, text in enumerate(chain):
        if not any(jaccard(text, chain[other]) >= 0.8 for other in kept):
            kept.append(number)
    assert len(kept) > 1
    assert [number - 1 for _, number in out.places] == kept


# --- contamination ---------------------------------------------------------------------------------


def covered(item: str, row: str, n: int) -> float:
    """Share of the item's distinct runs of n words that stand in the row."""
    own = runs(item.split(), n)
    return len(own & runs(row.split(), n)) / len(own) if own else 0.0


def of_words(rng: random.Random, length: int) -> list[str]:
    """Distinct words."""
    return rng.sample(VOCABULARY, length)


@pytest.mark.parametrize("n", [8, 10, 13])
def test_contamination_is_that_of_brute_force(tmp_path: Path, n: int) -> None:
    """Over random overlaps, hits, matches and coverage are those of counting all n-grams of all pairs."""
    rng = random.Random(n)
    items = [of_words(rng, rng.choice((n - 1, n, n + 1, 25, 40))) for _ in range(25)]
    rows = []
    for _ in range(80):
        source = rng.choice(items)
        start, length = rng.randrange(len(source)), rng.randrange(1, len(source) + 1)
        rows.append(" ".join(of_words(rng, rng.choice((3, 30))) + source[start : start + length] + of_words(rng, 5)))
    rows += [" ".join(item) for item in rng.sample(items, 6)]
    rows = list(dict.fromkeys(rows))
    tested = [" ".join(item) for item in items]
    train = write_rows(tmp_path / "train.jsonl", map(plain, rows))
    against = write_rows(tmp_path / "test.jsonl", [{"problem": text} for text in tested])
    out = prepare(
        tmp_path / "out", train, "--against", against, "--ngram", str(n), "--near-duplicates", "keep"
    )  # fmt: skip
    found = {
        (int(hit["problem"].rpartition(" row ")[2]) - 1, int(hit["row"].rpartition(" row ")[2]) - 1): hit
        for hit in out.card["decontamination"]["hits"]
    }
    for item, text in enumerate(tested):
        for row, line in enumerate(rows):
            share, alike = covered(text, line, n), jaccard(text, line)
            hit = found.get((item, row))
            if share >= 0.5 or alike >= 0.9 or text == line:
                assert hit is not None, (text, line)
            elif alike < 0.8:
                assert hit is None, (text, line)
            if hit is not None:
                assert hit["coverage"] == pytest.approx(share, abs=1e-4)
                assert hit["set"] == str(against)
    assert out.gone() == {("train.jsonl", row + 1): "contaminated" for _, row in found}
    sets = out.card["decontamination"]["sets"]
    assert [(s["problems"], s["problems_found"]) for s in sets] == [(len(tested), len({item for item, _ in found}))]


@pytest.mark.parametrize("n", [8, 10, 13])
def test_exactly_half_of_the_ngrams_is_a_hit_and_one_fewer_is_not(tmp_path: Path, n: int) -> None:
    """An item of ten n-grams is found in a row with five of them, and not in one with four."""
    rng = random.Random(0)
    item = of_words(rng, n + 9)
    tail = [word + "x" for word in of_words(rng, 60)]
    half, fewer = item[: n + 4] + tail[:30], item[: n + 3] + tail[30:]
    train = write_rows(tmp_path / "a.jsonl", [plain(" ".join(half)), plain(" ".join(fewer)), plain("other")])
    against = write_rows(tmp_path / "test.jsonl", [{"question": " ".join(item)}])
    out = prepare(tmp_path / "out", train, "--against", against, "--ngram", str(n))
    assert out.gone() == {("a.jsonl", 1): "contaminated"}
    assert [hit["coverage"] for hit in out.card["decontamination"]["hits"]] == [0.5]
    out = prepare(tmp_path / "out2", train, "--against", against, "--ngram", str(n), "--coverage", "0.4")
    assert len(out.gone()) == 2


def test_halves_in_two_rows_do_not_add_up(tmp_path: Path) -> None:
    """Coverage is that of one row: an item spread over three rows is in none of them."""
    item = of_words(random.Random(1), 39)
    rows = [plain(" ".join([*(word + "x" for word in item[:20]), *item[at : at + 20]])) for at in (0, 9, 19)]
    against = write_rows(tmp_path / "test.jsonl", [{"problem": " ".join(item)}])
    out = prepare(tmp_path / "out", write_rows(tmp_path / "a.jsonl", rows), "--against", against)
    assert not out.gone()


def test_boilerplate_and_short_items(tmp_path: Path) -> None:
    """A shared closing sentence is no hit; a short item is found as the whole row alone, in any typesetting."""
    closing = "can be written as m over n where m and n are relatively prime positive integers find m plus n"
    own, other = " ".join(of_words(random.Random(2), 30)), " ".join(of_words(random.Random(3), 30))
    train = write_rows(
        tmp_path / "a.jsonl",
        [
            plain(f"{own} {closing}"),
            plain("compute $2 + 3$."),
            plain("First, Compute 2+3 and then add one to the result"),
        ],
    )
    against = write_rows(tmp_path / "t.jsonl", [{"problem": f"{other} {closing}"}, {"problem": r"Compute \( 2+3 \)"}])
    out = prepare(tmp_path / "out", train, "--against", against)
    assert covered(f"{other} {closing}", f"{own} {closing}", 10) > 0.1
    assert out.gone() == {("a.jsonl", 2): "contaminated"}


def test_chinese_text_is_compared_character_by_character(tmp_path: Path) -> None:
    """An ideograph is a word: a problem inside a longer row is found, one of the same subject is not."""
    item = "已知等差数列的首项为三公差为五求这个数列前二十项的和"
    train = write_rows(
        tmp_path / "a.jsonl",
        [plain(f"题目如下。{item}，请写出过程。"), plain("已知等比数列的首项为二公比为七求这个数列第九项的值是多少")],
    )
    out = prepare(tmp_path / "out", train, "--against", write_rows(tmp_path / "t.jsonl", [{"problem": item + "。"}]))
    assert out.gone() == {("a.jsonl", 1): "contaminated"}
    assert out.card["decontamination"]["hits"][0]["coverage"] == 1.0


def test_a_row_with_two_tested_problems_is_dropped_once_and_listed_twice(tmp_path: Path) -> None:
    """Every hit is listed, and the row counts once."""
    one, two = (" ".join(of_words(random.Random(seed), 20)) for seed in (4, 5))
    train = write_rows(tmp_path / "a.jsonl", [plain(f"{one} {two}"), plain("say 1")])
    first = write_rows(tmp_path / "t.jsonl", [{"problem": one}])
    second = write_rows(tmp_path / "u.jsonl", [{"problem": two}])
    out = prepare(tmp_path / "out", train, "--against", f"{first},{second}")
    assert len(out.gone()) == 1
    assert {hit["set"] for hit in out.card["decontamination"]["hits"]} == {str(first), str(second)}
    assert [s["problems_found"] for s in out.card["decontamination"]["sets"]] == [1, 1]


# --- the chain of counts -----------------------------------------------------------------------------

EVERYTHING: list[tuple[dict[str, Any], str | None]] = [
    (plain("How many sides has a square?", 4), None),
    (plain("How many sides has a square?", 4), "exact_duplicate"),
    (plain("how many  sides has a $square$", "4.0"), "normalised_duplicate"),
    ({"answer": "1"}, "problem_missing"),
    (plain(None), "problem_missing"),  # type: ignore[arg-type]
    (plain(17), "problem_not_text"),  # type: ignore[arg-type]
    (plain([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]), "problem_not_text"),  # type: ignore[arg-type]
    (plain("?!"), "problem_without_words"),
    (plain("   "), "problem_without_words"),
    (plain("longer" * 10_001), "problem_too_long"),
    (plain("See <image> and count the dots"), "problem_needs_an_image"),
    (plain("half a pair \ud800 here"), "text_not_unicode"),
    (plain("a NUL \0 here"), "text_not_unicode"),
    (plain("No answer here", None), "answer_missing"),
    (plain("Nothing but blanks here", "  "), "answer_missing"),
    (plain("Yes or no", True), "answer_not_text"),
    (plain("A struct for an answer", {"a": 1}), "answer_not_text"),
    (plain("Not a number", float("inf")), "answer_not_text"),
    (plain("Thirds", "0.33333333333333331"), "answer_over_16_digits"),
    (plain("A huge integer", 10**17), "answer_over_16_digits"),
    (plain("No usable gold", "x" * 5000), "answer_unusable"),
    (plain("What is the conflict of one?", "1"), "conflicting_answers"),
    (plain("What is the conflict of one?", "2"), "exact_duplicate"),
    (plain("what is the conflict of one", "3"), "normalised_duplicate"),
    (plain(" ".join(VOCABULARY[:50])), None),
    (plain(" ".join(VOCABULARY[:50]) + " ban"), "near_duplicate"),
    (plain(" ".join(VOCABULARY[60:90])), "contaminated"),
    (plain("Sixteen digits are fine", "1234567890123456"), None),
]


def test_every_reason_at_once(tmp_path: Path) -> None:
    """A file that provokes every reason: each row once, in its place, with its own problem and answer."""
    file = write_rows(tmp_path / "a.jsonl", [row for row, _ in EVERYTHING])
    against = write_rows(tmp_path / "t.jsonl", [{"problem": " ".join(VOCABULARY[60:85])}])
    out = tmp_path / "out"
    code, _, err = quiet_dapo(
        "data", "prepare", file, "-o", out, "--against", against, "--rejects", tmp_path / "rejects"
    )
    assert code == 0, err
    lines = (tmp_path / "rejects").read_bytes().decode("utf-8", errors="surrogatepass").split("\n")
    assert lines.pop() == ""
    dropped = [json.loads(line) for line in lines]
    rows = pyarrow.parquet.read_table(out / "train.parquet").to_pylist()
    check_chain(Prepared(rows, json.loads((out / "card.json").read_text()), dropped))
    reasons = {row["row"]: row["reason"] for row in dropped}
    assert reasons == {number: why for number, (_, why) in enumerate(EVERYTHING, start=1) if why}
    assert set(reasons.values()) >= set(REASONS)
    for row in dropped:
        assert row["problem"] == EVERYTHING[row["row"] - 1][0].get("problem") or row["problem"].strip() == ""


def test_the_rejects_are_utf8_whatever_the_rows_hold(tmp_path: Path) -> None:
    """Half a UTF-16 pair in a dropped row leaves a file that every JSON reader takes."""
    file = write_rows(tmp_path / "a.jsonl", [plain("one"), plain("half \ud800")])
    quiet_dapo("data", "prepare", file, "-o", tmp_path / "out", "--rejects", tmp_path / "rejects")
    assert json.loads((tmp_path / "rejects").read_bytes().decode("utf-8"))["reason"] == "text_not_unicode"


@pytest.mark.parametrize("answer", ["1,234,567,890,123,456,789", "12{,}345{,}678{,}901{,}234{,}567"])
def test_numbers_over_16_digits_with_separators_are_rejects(tmp_path: Path, answer: str) -> None:
    """Thousands separators do not hide a number's length."""
    file = write_rows(tmp_path / "a.jsonl", [plain("one"), plain("two", answer)])
    assert prepare(tmp_path / "out", file).gone() == {("a.jsonl", 2): "answer_over_16_digits"}


# --- layouts -------------------------------------------------------------------------------------------


def test_every_layout_gives_the_same_problem(tmp_path: Path) -> None:
    """verl's, plain, solution, GSM8K's, in each kind of file: one problem, one answer."""
    problem, gold = "What is the sum of 1199 and 1?", "1200"
    verl = {
        "data_source": "s",
        "prompt": [{"role": "user", "content": DAPO_WORDING.replace("{{ problem }}", problem)}],
        "reward_model": {"ground_truth": gold, "style": "rule"},
    }
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([verl]), tmp_path / "verl.parquet")
    write_rows(tmp_path / "chat.jsonl", [verl])
    write_rows(tmp_path / "plain.jsonl", [{"prompt": problem, "answer": int(gold)}])
    write_rows(tmp_path / "float.jsonl", [{"question": problem, "final_answer": float(gold)}])
    solution = rf"First \boxed{{7}}, so \boxed{{ {gold} }}."
    write_rows(tmp_path / "solution.jsonl", [{"problem": problem, "solution": solution}])
    write_rows(tmp_path / "gsm.jsonl", [{"question": problem, "answer": "So it is\n#### 1,200"}])
    (tmp_path / "a.json").write_text(json.dumps([{"problem": problem, "answer": gold}], indent=1))
    (tmp_path / "a.csv").write_text(f'\ufeffproblem,answer\r\n"{problem}",{gold}\r\n', encoding="utf-8")
    (tmp_path / "a.tsv").write_text(f"mine\tgold\n{problem}\t{gold}\n")
    for number, file in enumerate(sorted(tmp_path.iterdir())):
        mapping = ("--prompt-column", "mine", "--answer-column", "gold") if file.suffix == ".tsv" else ()
        out = prepare(tmp_path / f"out{number}", file, *mapping)
        assert [(row["problem"], row["answer"]) for row in out.rows] == [(problem, gold)], file.name


def test_a_list_after_hashes_stays_a_list(tmp_path: Path) -> None:
    """The answer `#### 3,4` is no 34, and the point `(1,2)` no 12."""
    file = write_rows(
        tmp_path / "a.jsonl", [plain("Which two?", "x\n#### 3,4"), plain("Which point?", "y\n#### (1,2)")]
    )
    assert [row["answer"] for row in prepare(tmp_path / "out", file).rows] == ["3,4", "(1,2)"]


def test_a_column_whose_name_has_a_dot(tmp_path: Path) -> None:
    """A flattened CSV has a column reward_model.ground_truth of its own."""
    (tmp_path / "a.csv").write_text("problem,reward_model.ground_truth\nWhat is one?,1\n")
    assert len(prepare(tmp_path / "out", tmp_path / "a.csv").rows) == 1


# --- the same bytes ------------------------------------------------------------------------------------


def mixed(folder: Path) -> tuple[Path, Path]:
    """Sources that have all kinds of drops, and an evaluation set."""
    rng = random.Random(7)
    rows = [plain(r.text, r.answer) | {"k": [1, "a"]} for r in (said(rng) for _ in range(100))]
    rows += [row | {"k": 2} for row, _ in EVERYTHING if "\ud800" not in str(row.get("problem"))]
    texts = [wordy(rng) for _ in range(20)]
    rows += [plain(" ".join(edited(rng, rng.choice(texts)))) | {"k": None} for _ in range(60)]
    return write_rows(folder / "a.jsonl", rows), write_rows(
        folder / "t.jsonl", [{"problem": " ".join(VOCABULARY[60:85])}]
    )


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_same_bytes_for_all_hash_seeds_and_places(tmp_path: Path) -> None:
    """Table, card and rejects are the same bytes in other processes, with other hash seeds, at other places."""
    source, against = mixed(tmp_path)
    words = ["data", "prepare", str(source), "--against", str(against), "--keep", "k", "--conflicts", "first"]
    code, _, err = quiet_dapo(*words, "-o", tmp_path / "one", "--rejects", tmp_path / "one.rejects")
    assert code == 0, err
    quiet_dapo(*words, "-o", tmp_path / "far" / "two", "--rejects", tmp_path / "far" / "two.rejects")
    call = "import sys; from dapo.cli import main; main(sys.argv[1:])"
    other = [*words, "-o", str(tmp_path / "three"), "--rejects", str(tmp_path / "three.rejects")]
    subprocess.run(
        [sys.executable, "-c", call, *other], check=True, env=os.environ | {"PYTHONHASHSEED": "4"}, capture_output=True
    )
    assert bytes_of(tmp_path / "one") == bytes_of(tmp_path / "far" / "two") == bytes_of(tmp_path / "three")
    rejects = {(tmp_path / name).read_bytes() for name in ("one.rejects", "far/two.rejects", "three.rejects")}
    assert len(rejects) == 1
    assert str(tmp_path / "three") not in (tmp_path / "three" / "card.json").read_text()


def test_preparing_again_changes_nothing(tmp_path: Path) -> None:
    """A prepared folder, prepared again or over itself, has the same rows and content hash."""
    source, _ = mixed(tmp_path)
    first = prepare(tmp_path / "one", source, "--keep", "k")
    again = prepare(tmp_path / "two", tmp_path / "one")
    assert again.rows == first.rows
    assert again.card["content_sha256"] == first.card["content_sha256"]
    assert not again.rejects
    over = prepare(tmp_path / "one", tmp_path / "one", "--overwrite")
    assert over.rows == first.rows


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(
            "context", "There is a box.",
        ),
        pytest.param(
            "prompt", "Question: What is one? Answer:",
        ),
        ("solution", r"\boxed{9}"),
    ],
)  # fmt: skip
def test_kept_columns_do_not_change_what_is_read_next(tmp_path: Path, column: str, value: str) -> None:
    """A kept column with a name that the reader knows is not read in the place of problem and answer."""
    file = write_rows(tmp_path / "a.jsonl", [plain("What is one?", "1") | {column: value, "mine": "What is two?"}])
    mapping = ("--prompt-column", "mine") if column == "prompt" else ()
    first = prepare(tmp_path / "one", file, "--keep", column, *mapping)
    assert [row["problem"] for row in prepare(tmp_path / "two", tmp_path / "one").rows] == [
        row["problem"] for row in first.rows
    ]


# --- texts ---------------------------------------------------------------------------------------------

DIFFERENT = [
    ("x^8 + 98", "x^8 - 98"), ("1.5", "15"), ("x^{10}", "x^{1}0"), ("x < 2", "x <= 2"), (r"x \le 2", r"x \ge 2"),
    (r"x \ne 2", "x = 2"), (r"\frac{1}{12}", r"\frac{11}{2}"), ("x^{2y}", "x^{2}y"), ("3!", "3"), ("|x|", "x"),
    (r"\{1,2\}", "(1,2)"), ("1,2", "12"), ("3:4", "34"), (r"\pi", "p i"), ("x/2", "x2"), ("0.05", "0.5"),
    (r"a_{12}", r"a_{1}2"), ("f'(x)", "f(x)"), (r"\sqrt{2}", "2"), (r"A \cup B", r"A \cap B"), ("2%", "2"),
    ("1,000.5", "10005"), ("x=-1", "x=1"), ("x ≥ 1", "x > 1"), (r"[0,1)", "[0,1]"), ("−3", "3"), ("2*3", "23"),
]  # fmt: skip
MERGED = {  # what a plainer normalisation would merge -> how
    ("1, 23, 4", "12, 3, 4"): "a comma with a blank falls away, and then the blank",
    ("2 1/2", "21/2"): "the blank of a mixed number falls away",
    ("1 : 23", "12 : 3"): "a colon between blanks falls away",
    ("1 # 23", "12 # 3"): "an operator # between blanks falls away",
    ("a : b", "ab"): "the colon of a ratio of letters falls away",
    ("10²", "102"): "NFKC makes a digit of a superscript",
    ("log₂8", "log28"): "NFKC makes a digit of a subscript",
    ("y'' + y = 0", "y' + y = 0"): "two primes are taken for a closing quote, one before a blank for a pause",
    ("f''(x)", "f(x)"): "two primes are taken for a closing quote",
    ("y' + y = 0", "y + y = 0"): "a prime before a blank is taken for a pause",
    (r"u \cdot v", r"u \times v"): "dot and cross product are both made a star",
    ("p and ~q", "p and q"): "a tilde that negates is taken for LaTeX's blank",
}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *DIFFERENT,
        *MERGED,
    ],
)
def test_different_formulas_stay_different(one: str, other: str) -> None:
    """A digit, sign, point, brace, relation or operator makes another problem, alone and within a sentence."""
    for text in ("{}", "Find the value of {} now", "If {} then what?", "$${}$$"):
        assert normalise(text.format(one) if "{}" in text else text) != normalise(text.format(other))


SAME = [
    ("Find  x .", "find $x$"), (r"\dfrac{1}{2}", r"\frac12"), (r"\left( x \right)", "(x)"), ("−1", "-1"),
    ("1,000", "1000"), (r"1{,}000", "1000"), (r"1,\!000", "1000"), ("x≤2", r"x \leq 2"), ("Find “x”", 'find "x"'),
    (r"x^{2}", "x^2"), (r"\displaystyle x", "x"), ("ＡＢ", "ab"), (r"x\,y", "x y"), (r"\[x\]", "$$x$$"),
    ("3·4", r"3 \cdot 4"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_typesetting_makes_no_other_problem(one: str, other: str) -> None:
    """Case, blanks, final points and what LaTeX adds for looks fall away."""
    assert normalise(one) == normalise(other)
    if r"\frac12" not in (one, other):  # its figures are read as 12, which only makes the guard stricter
        assert figures(one) == figures(other)


TOKENS = st.lists(
    st.sampled_from(
        ["x", "y", "find", "+", "-", "=", "<", "<=", ">=", "^", "*", "/", "1", "23", "4.5", "0.05", "(", ")"]
    ),
    min_size=1,
    max_size=9,
)


@given(TOKENS, TOKENS)
@settings(max_examples=100, deadline=None)
def test_equal_normal_forms_have_equal_numbers_signs_and_words(one: list[str], other: list[str]) -> None:
    """Two texts are one only when they are the same characters without blanks, numbers kept apart by letters."""

    def text(tokens: Iterable[str]) -> str:
        return " ".join(token if not token[0].isdigit() else f"{token} k" for token in tokens)

    a, b = text(one), text(other)
    if normalise(a) == normalise(b):
        assert a.replace(" ", "") == b.replace(" ", "")
        assert figures(a) == figures(b)
    else:
        assert a.replace(" ", "") != b.replace(" ", "")


@given(TOKENS, st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_numbers_signs_and_words_are_those_of_the_tokens(tokens: list[str], rng: random.Random) -> None:
    """The readings of a text are its tokens, with any blanks between them and any case."""
    text = "".join(token + " " * rng.randint(1, 3) for token in tokens)
    text = text.upper() if rng.random() < 0.5 else text
    numbers = tuple(token for token in tokens if token[0].isdigit())
    # "< =" are two signs and "<=" is one: blanks stay between tokens here
    signs = tuple(token for token in tokens if token in ("+", "-", "=", "<", "<=", ">=", "^", "*", "/"))
    assert figures(text) == (numbers, signs)
    assert words(text) == [token for token in tokens if token[0].isalnum()]


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_any_text_has_a_normal_form(text: str) -> None:
    """No text is too odd: the readings are had without an error, and blanks around them change nothing."""
    assert normalise(text) == normalise(f"  {text}\n")
    assert all(re.fullmatch(r"\d+(?:\.\d+)?", number) for number in figures(text)[0])
    assert all(word and not word.isspace() for word in words(text))


# --- templates -----------------------------------------------------------------------------------------

REAL = "Find all $x$ with $x^2 = 4$. Express the answer as a sum."
TEMPLATES = [
    DAPO_WORDING.replace("{{ problem }}", "{}"),
    r"{} Let's think step by step and output the final answer within \boxed{{}}.",
    r"{}" "\n" r"Please reason step by step, and put your final answer within \boxed{{}}.",
    '{} Let\'s think step by step and output the final answer after "####".',
    "Question: {}\nAnswer:", "Question: {}\nAnswer: Let's think step by step.", "Problem: {}\nSolution:",
    "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\n{}\n" r"Please reason step by step, and put your final answer within \boxed{{}}."
    "<|im_end|>\n<|im_start|>assistant\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
    "<｜begin▁of▁sentence｜><｜User｜>{}<｜Assistant｜><think>\n",
    "<s>[INST] {} [/INST]",
    "A conversation between User and Assistant. The User asks. User: {}\nAssistant: <think>",
]  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_known_templates_are_taken_off(template: str) -> None:
    """What training sets put around their problems goes, once and for all."""
    stored = template.format(REAL)
    assert bare(stored, "row 1") == REAL
    assert bare([{"role": "system", "content": "Be brief."}, {"role": "user", "content": stored}], "row 1") == REAL


UNTOUCHED = [
    "Ann solves the puzzle step by step, with 3 moves a step. How many moves are 5 steps?",
    "Let's think step by step and output the final answer. How many words has the sentence before this one?",
    "The sign reads \"Answer: 12\" and Bob's sign reads \"Answer: 7\". What is the sum of both?",
    "Question 3: what is 2+2?",
    "In this game, Question: cards give 2 points. How many do 7 cards give?",
    r"The box \boxed{} is empty; put 3 coins in it. How many coins are there?",
    "Simplify the answer. The problem: none.",
    "[INST] appears 3 times in a log of 9 lines. What share is that?",
    "How many characters has the mark <|im_start|>?",
    "A conversation between User and Assistant. has how many words?",
    "Sum the numbers:\n#### 4 ####\n5",
]  # fmt: skip
ALTERED = {
    "How many tokens has <|im_start|>user\nhello<|im_end|> when each mark is one?": "a chat's marks are found anywhere",
    "A log holds <｜User｜>hi<｜Assistant｜> 12 times. How many marks is that?": "a chat's marks are found anywhere",
    "Ann has 5 pupils and 3 of them think step by step": "an instruction is found at the end of a sentence",
    "Compute 3+4 and write down the answer:": "a label is found at the end of a sentence",
}


@pytest.mark.parametrize(
    "problem",
    [
        *UNTOUCHED,
        *ALTERED,
    ],
)
def test_real_problems_are_not_altered(problem: str) -> None:
    """Problems that only speak of steps, answers, marks or boxes stay as they are."""
    assert bare(problem, "row 1") == problem


@given(st.lists(st.sampled_from(TEMPLATES[:7]), max_size=3))
@settings(max_examples=40, deadline=None)
def test_taking_templates_off_twice_is_taking_them_off_once(around: Sequence[str]) -> None:
    """Nested templates go too, and what is left is left alone."""
    text = REAL
    for template in around:
        text = template.format(text)
    once = bare(text, "row 1")
    assert bare(once, "row 1") == once == REAL


def content(rows: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(problem, answer) of rows."""
    return [(row["problem"], row["answer"]) for row in rows]


def test_max_rows_counts_rows_of_each_source(tmp_path: Path) -> None:
    """--max-rows takes the first rows of each source, also those that are then dropped."""
    one = write_rows(tmp_path / "a.jsonl", [plain("?"), plain("first"), plain("second")])
    two = write_rows(tmp_path / "b.jsonl", [plain("third"), plain("first"), plain("fourth")])
    out = prepare(tmp_path / "out", one, two, "--max-rows", "2")
    assert content(out.rows) == [("first", "7"), ("third", "7")]
