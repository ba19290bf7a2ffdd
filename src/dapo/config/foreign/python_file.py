"""A training script of TRL, read by its syntax tree and never run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any

from dapo.config.foreign.report import Unresolved, plain
from dapo.errors import ConfigError

REWARDS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward", "get_soft_overlong_punishment")


def read_python(name: str, text: str) -> dict[str, Any]:
    """The keyword arguments of the file's one GRPOConfig(...) and of GRPOTrainer(...).

    Literals, and names of the module that hold one literal, have values; all else is an Unresolved.

    Raises:
        ConfigError: no Python, or not exactly one GRPOConfig call, or more than one GRPOTrainer call.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(f"{name}: {line}can't be read as Python: {type(error).__name__}") from None
    configs, trainers = list(_calls(tree, "GRPOConfig")), list(_calls(tree, "GRPOTrainer"))
    if len(configs) != 1 or len(trainers) > 1:
        places = ", ".join(str(call.lineno) for call in (configs if len(configs) != 1 else trainers))
        raise ConfigError(
            f"{name}: {len(configs)} calls of GRPOConfig and {len(trainers)} of GRPOTrainer"
            f"{f' (lines {places})' if places else ''}; exactly one GRPOConfig and at most one GRPOTrainer are wanted"
        )
    constants = _constants(tree)
    values: dict[str, Any] = {}
    for call in (*trainers, *configs):
        if call.args:
            what = _source(call.args[0])
            values["model" if call in trainers else "output_dir"] = _value(call.args[0], constants, what)
        for keyword in call.keywords:
            source = _source(keyword.value)
            if keyword.arg is None:
                values[f"**{source}"] = Unresolved(f"**{source}", (source,))
            elif keyword.arg == "reward_funcs":
                values["reward_funcs"] = _rewards(keyword.value, constants)
            elif keyword.arg != "args":
                values[keyword.arg] = _value(keyword.value, constants, source)
    return values


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == name:
                yield node


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Names of the module that are assigned once in the file, and there a literal."""
    stores = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
    found: dict[str, Any] = {}
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = getattr(node, "value", None)
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and value is not None:
            literal = _literal(value)
            if stores.count(targets[0].id) == 1 and not isinstance(literal, Unresolved):
                found[targets[0].id] = literal
    return found


def _literal(node: ast.expr) -> Any:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        source = _source(node)
        return Unresolved(source, (source,))
    return _told(value)


def _told(value: Any) -> Any:
    """A literal as YAML would give it."""
    if isinstance(value, (list, tuple)):
        return [_told(part) for part in value]
    if isinstance(value, dict):
        return {str(key): _told(part) for key, part in value.items()}
    return plain(value)


def _value(node: ast.expr, constants: dict[str, Any], source: str) -> Any:
    if isinstance(node, ast.Name):
        return constants[node.id] if node.id in constants else Unresolved(source, (source,))
    return _literal(node)


def _rewards(node: ast.expr, constants: dict[str, Any]) -> Any:
    """TRL's own reward functions may stand there by name."""
    if isinstance(node, ast.Name) and node.id in REWARDS:
        return [node.id]
    if isinstance(node, (ast.List, ast.Tuple)):
        parts = [part.id if isinstance(part, ast.Name) and part.id in REWARDS else _literal(part) for part in node.elts]
        missing = tuple(name for part in parts if isinstance(part, Unresolved) for name in part.names)
        return Unresolved(_source(node), missing) if missing else parts
    return _value(node, constants, _source(node))


def _source(node: ast.AST) -> str:
    try:
        return " ".join(ast.unparse(node).split())[:80]
    except (RecursionError, ValueError):
        return "an expression"
