"""LiveCodeBench rows (code_generation_lite) into a problem's text and tests that python_tests runs.

Columns: question_content, starter_code, metadata (JSON text), public_test_cases (JSON text),
private_test_cases (JSON text, or base64 of zlib of a pickle of that text). A test is an object of input,
output and testtype. The pickle is never loaded: its opcodes are walked, and only a stream that makes one
text and nothing else is accepted.

Written to the published layout and tried on made-up rows of it; not run on the published file. Two things
differ from the set's own harness, which puts a list of star imports before every program and takes a tuple
for a list: here a program is run as it was written, so the problem's text asks for its imports.
"""

from __future__ import annotations

import base64
import binascii
import json
import keyword
import pickletools
import zlib
from typing import Any, NoReturn

from dapo.errors import DataError

MAX_TEST_BYTES = 512 * 2**20  # of one row's private tests, decompressed

_TEXT = {"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_AROUND = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"}


def convert(content: str, columns: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """(problem text, columns with `tests` instead of the published test columns) of a row.

    `tests` is {"inputs": [...], "outputs": [...]} for programs that read stdin, and a list of assert
    statements for a method of class Solution. It is empty for a row whose tests are of both kinds or of
    neither (the full release is said to have one): the check of tests then counts it as one that can't be
    graded.

    Args:
        content: question_content.
        columns: the row's other columns.
        where: begins every message.

    Raises:
        DataError: naming the row and the column that can't be read.
    """
    starter = columns.get("starter_code") or ""
    tests = _cases(columns, "public_test_cases", where) + _cases(columns, "private_test_cases", where)
    kinds = {test["testtype"] for test in tests}
    if kinds == {"stdin"}:
        runnable: Any = {"inputs": [t["input"] for t in tests], "outputs": [t["output"] for t in tests]}
    elif kinds == {"functional"}:
        name = _method(columns.get("metadata"), starter, where)
        runnable = [_statement(name, test, where) for test in tests]
    else:
        runnable = []
    others = {key: value for key, value in columns.items() if key not in ("public_test_cases", "private_test_cases")}
    return _text(content, starter), {**others, "tests": runnable}


def _text(content: str, starter: str) -> str:
    if starter.strip():
        given = f"Start from this code:\n\n```python\n{starter.rstrip()}\n```\n\n"
    else:
        given = "The program reads standard input and writes to standard output.\n\n"
    return (
        f"{content.strip()}\n\n{given}"
        "Write the whole program, with all its imports, in one block that begins with ```python."
    )


def _cases(columns: dict[str, Any], name: str, where: str) -> list[dict[str, str]]:
    where = f"{where}: {name}"
    value = columns.get(name)
    if not isinstance(value, str):
        raise DataError(f"{where}: a text is wanted; give the published file")
    tests = _parsed(value if value.lstrip().startswith("[") else unpacked(value, where), where)
    if not isinstance(tests, list):
        raise DataError(f"{where}: a list of tests is wanted")
    for index, test in enumerate(tests):
        if not isinstance(test, dict) or not all(isinstance(test.get(k), str) for k in ("input", "output", "testtype")):
            raise DataError(f"{where}[{index}]: a test has the texts input, output and testtype")
    return tests


def _parsed(text: str, where: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON value")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {error}") from None


def unpacked(packed: str, where: str) -> str:
    """The text in base64 of zlib of a pickle of one text, without loading the pickle.

    Args:
        packed: base64.
        where: begins the message.

    Raises:
        DataError: any other encoding or payload, or more than MAX_TEST_BYTES.
    """
    try:
        inflate = zlib.decompressobj()
        stream = inflate.decompress(base64.b64decode(packed, validate=True), MAX_TEST_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DataError(f"{where}: neither JSON nor compressed JSON: {error}") from None
    if not inflate.eof:
        raise DataError(f"{where}: cut off, or over {MAX_TEST_BYTES >> 20} MiB decompressed; give the published file")
    texts: list[str] = []
    end, other = -1, ""
    try:
        for opcode, argument, place in pickletools.genops(stream):
            if opcode.name in _TEXT:
                texts.append(str(argument))
            elif opcode.name not in _AROUND:
                other = opcode.name
                break
            end = place or 0
    except ValueError as error:
        raise DataError(f"{where}: not a pickle of one text: {str(error).splitlines()[0]}") from None
    if other:
        raise DataError(f"{where}: its pickle holds more than one text ({other}); it is not read")
    if len(texts) != 1 or end + 1 != len(stream):
        raise DataError(f"{where}: its pickle holds more or less than one text; it is not read")
    return texts[0]


def _method(metadata: Any, starter: str, where: str) -> str:
    known = _parsed(metadata, f"{where}: metadata") if isinstance(metadata, str) else metadata
    name = known.get("func_name") if isinstance(known, dict) else None
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise DataError(f"{where}: metadata: func_name should be a method's name, not {name!r}")
    if "class Solution" not in starter:
        raise DataError(f"{where}: starter_code: functional tests call a method of class Solution, and it has none")
    return name


def _statement(name: str, test: dict[str, str], where: str) -> str:
    where = f"{where}: a functional test"
    arguments = ", ".join(repr(_parsed(line, where)) for line in test["input"].split("\n") if line.strip())
    return f"assert Solution().{name}({arguments}) == {_parsed(test['output'], where)!r}"
