"""The shell's whole-number arithmetic over known variables, by syntax tree and without eval."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from dapo.config.foreign.report import Unresolved

LONGEST = 500  # signs of an expression
DEEPEST = 20  # variables that name variables
LARGEST = 2**63  # the shell's integers have 64 bits


class _Untold(Exception):
    """Why an expression has no value."""


def arithmetic(expression: str, variables: Mapping[str, Any], depth: int = 0) -> int | str:
    """The value of what stands in $((...)), or why it can't be told.

    + - * / % ** and brackets over whole numbers and variables; / truncates towards 0, and what 64 bits
    can't hold has no value.

    >>> arithmetic("1024 * 2 + a", {"a": "6"})
    2054
    >>> arithmetic("7 / -2", {})
    -3
    >>> arithmetic("b + 1", {})
    'b'
    """
    if len(expression) > LONGEST or depth > DEEPEST:
        return "an expression that is too long"
    if set("#_") & set(re.sub(r"[A-Za-z_]\w*", "", expression)):
        return f"the expression {expression.strip()[:40]!r}"  # 2#101 and 1_000 mean other things in Python
    try:
        tree = ast.parse(" ".join(expression.split()), mode="eval")
        return _node(tree.body, variables, depth)
    except _Untold as error:
        return str(error)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return f"the expression {expression.strip()[:40]!r}"


def _node(node: ast.expr, variables: Mapping[str, Any], depth: int) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _bounded(node.value)
    if isinstance(node, ast.Name):
        return _name(node.id, variables, depth)
    if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.BinOp) and isinstance(node.operand.op, ast.Pow):
        raise _Untold("a sign before **")  # the shell's binds tighter than Python's
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _node(node.operand, variables, depth)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _node(node.left, variables, depth), _node(node.right, variables, depth)
        return _bounded(_operate(node.op, left, right))
    raise _Untold(f"{type(node).__name__} in an expression")


def _name(name: str, variables: Mapping[str, Any], depth: int) -> int:
    held = variables.get(name)
    if isinstance(held, Unresolved):
        raise _Untold(", ".join(held.names))
    if not isinstance(held, str):
        raise _Untold(name)
    value = arithmetic(held, variables, depth + 1)
    if isinstance(value, str):
        raise _Untold(f"{name} = {held[:40]!r}")
    return value


def _operate(sign: ast.operator, left: int, right: int) -> int:
    if isinstance(sign, ast.Add):
        return left + right
    if isinstance(sign, ast.Sub):
        return left - right
    if isinstance(sign, ast.Mult):
        return left * right
    if isinstance(sign, ast.Pow) and 0 <= right < 64:
        return int(left**right)
    if isinstance(sign, (ast.Div, ast.Mod)):
        if not right:
            raise _Untold("a division by zero")
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return left - quotient * right if isinstance(sign, ast.Mod) else quotient
    raise _Untold(f"{type(sign).__name__} in an expression")


def _bounded(value: int) -> int:
    if abs(value) >= LARGEST:
        raise _Untold("a number over 64 bits")
    return value
