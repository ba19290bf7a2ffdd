"""The scripts of examples/: their cells (percent format), as a notebook, and the engines that two of them define."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

from dapo.engines import Policy
from dapo.rollout.base import RolloutEngine
from dapo.rollout.torch_engine import TorchEngine
from tiny import EOS_ID, model, tokenizer

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = sorted(script.stem for script in EXAMPLES.glob("*.py"))
ENDS = (EOS_ID, 9, 31)  # as the engines of test_engine_contract.py


def cells(name: str) -> list[tuple[str, str]]:
    """("markdown" or "code", text) of each cell; the script's docstring is the first."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    found = [("markdown", ast.get_docstring(ast.parse(text)) or "")]
    for part in re.split(r"^# %%", text, flags=re.MULTILINE)[1:]:
        mark, body = part.split("\n", 1)
        if mark.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"^# ?", "", body.strip(), flags=re.MULTILINE)))
        else:
            found.append(("code", body.strip()))
    return found


def notebook(name: str) -> Any:
    """The script as a notebook of nbformat."""
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    make = {"markdown": new_markdown_cell, "code": new_code_cell}
    return new_notebook(cells=[make[kind](text) for kind, text in cells(name)])


def defined(name: str) -> dict[str, Any]:
    """What the script's first code cell defines."""
    code = next(text for kind, text in cells(name) if kind == "code")
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(code, f"{name}.py", "exec"), namespace)
    return namespace


def plain_engine() -> RolloutEngine:
    """The engine of own_engine.py, on the tiny model."""
    engine: RolloutEngine = defined("own_engine")["PlainEngine"](model(4), ENDS)
    return engine


def calculator_engine() -> RolloutEngine:
    """The engine of calculator_tool.py around the built-in one."""
    policy = Policy(tokenizer(), ENDS)
    inner = TorchEngine(model(4), eos_ids=ENDS, slots=8, max_tokens=64, decode=policy.decode)
    engine: RolloutEngine = defined("calculator_tool")["WithCalculator"](inner, policy)
    return engine
