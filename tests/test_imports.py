"""The architecture, read off the source: who may know whom, and what nobody may do.

Imports are found in the syntax tree wherever they stand (inside functions and TYPE_CHECKING
too): a lazy import of a higher room is still knowledge of it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dapo

ROOT = Path(__file__).parents[1] / "src" / "dapo"
FILES = sorted(ROOT.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]

# Lowest first. A room imports from lower layers and from itself, never from its neighbours.
# "" is the package's own __init__, which re-exports errors, types and config.
LAYERS: list[set[str]] = [
    {"recipes"},  # data files alone
    {"errors"},
    {"files", "printable", "spans"},  # writing and hashing of files; knows nothing of dapo
    {"rng", "difficulty", "metric_table", "error_table", "generated", "plugins"},
    {"types"},
    {"config"},
    {""},
    {"algorithm", "out_of_memory"},
    {"neighbours", "clipping"},
    {"objectives"},  # by their names
    {"given"},  # parts that were handed over in code
    {"model"},
    {"data", "reward", "rollout", "learner"},
    {"records", "learners"},  # rollouts as plain rows; the learner of a configuration
    {"advantages"},  # shaped rewards into advantages
    {"grading", "batch", "flight"},  # draws into groups, groups into batches: shared by the layers above
    {"sampling", "evals", "run"},
    {"cluster"},  # actors; their ranks tell digests as `run.manifest` makes them
    {"pipeline"},  # sampling beside updates
    {"credit"},  # where an update's gradient comes from
    {"ledger", "metrics", "tracing", "alerts", "checks"},
    {"parts", "provenance", "engines"},
    {"stopping", "shown", "probe", "started"},
    {"loop"},
    {"build"},
    {"evaluator", "curate", "rate", "report", "targets"},
    {"doctor", "plan"},
    {"library"},  # what `import dapo` offers beside types: the package's __init__ knows it by name, and loads it late
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LAYERS) for room in rooms}

# Heavy or unsafe modules, and the places (files or folders) that may name them.
CONFINED = {
    "vllm": ("rollout/vllm_engine.py",),
    "ray": ("cluster/",),
    "peft": ("learner/lora.py",),
    "tensorboard": ("run/tools.py",),
    "wandb": ("run/tools.py",),
    "swanlab": ("run/tools.py",),
    "trackio": ("run/tools.py",),
    "torch.distributed": ("learner/", "cluster/"),
    "pickle": (),
    "_pickle": (),
    "cloudpickle": (),
    "dill": (),
    "joblib": (),
    "shelve": (),
    "marshal": (),
}

MAX_FUNCTION_LINES = 50  # without the docstring, which holds the equation and is welcome
MAX_FILE_LINES = 400


def room_of(name: str) -> str:
    """The room of a file: its first folder, or its own name at the top."""
    first = name.split("/")[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(tree: ast.AST, name: str) -> Iterator[str]:
    """Every dotted name the file imports, absolute; `from a import b` gives a.b."""
    package = ["dapo", *name.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            parts = [*base, *(node.module.split(".") if node.module else [])]
            yield from (".".join([*parts, alias.name]) for alias in node.names)
        elif isinstance(node, ast.Call) and dotted(node.func).endswith(("import_module", "__import__")):
            yield from (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a name or attribute chain; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def imported_rooms(tree: ast.AST, name: str) -> set[str]:
    """Rooms of dapo that the file imports; the bare package counts as ""."""
    rooms = set()
    for target in imported(tree, name):
        parts = target.split(".")
        if parts[0] == "dapo":
            known = len(parts) > 1 and parts[1] != "*" and is_module(parts[1])
            rooms.add(parts[1] if known else "")
    return rooms


def is_module(name: str) -> bool:
    """Whether dapo.NAME is a module or package, not something that __init__ defines."""
    return (ROOT / f"{name}.py").exists() or (ROOT / name).is_dir() or name in LEVEL


def inside(name: str, places: tuple[str, ...]) -> bool:
    """Whether a file is one of the places or lies in one."""
    return any(name == place or (place.endswith("/") and name.startswith(place)) for place in places)


def layering_faults(tree: ast.AST, name: str) -> list[str]:
    """Imports against the layering."""
    own = room_of(name)
    if own not in LEVEL:
        return [f"{name}: room {own!r} has no place in LAYERS; give it one here and in ARCHITECTURE.md"]
    return [
        f"{name}: imports {room or 'dapo itself'}, which is not below {own or 'dapo itself'}"
        for room in sorted(imported_rooms(tree, name))
        if room != own and not (own == "" and room == "library") and LEVEL.get(room, len(LAYERS)) >= LEVEL[own]
    ]


def confinement_faults(tree: ast.AST, name: str) -> list[str]:
    """Modules named outside the one place they belong to, by import or as an attribute."""
    used = set(imported(tree, name))
    used |= {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return [
        f"{name}: uses {module}"
        for module, places in CONFINED.items()
        if not inside(name, places) and any(u == module or u.startswith(f"{module}.") for u in used)
    ]


def unsafe_faults(tree: ast.AST, name: str) -> list[str]:
    """Calls that run what a file says: eval, exec, torch.load, allow_pickle=True."""
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = dotted(node.func)
            if called in ("eval", "exec", "builtins.eval", "builtins.exec"):
                faults.append(f"{name}:{node.lineno}: calls {called}")
            for keyword in node.keywords:
                allowed = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "allow_pickle" and not allowed:
                    faults.append(f"{name}:{node.lineno}: allow_pickle")
        if isinstance(node, ast.Attribute) and dotted(node) == "torch.load":
            faults.append(f"{name}:{node.lineno}: torch.load")
    if "torch.load" in imported(tree, name):
        faults.append(f"{name}: imports torch.load")
    return faults


def long_functions(tree: ast.AST, name: str) -> list[str]:
    """Functions over the limit, counted without their docstring."""
    faults = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
            if lines > MAX_FUNCTION_LINES:
                faults.append(f"{name}: {node.name} has {lines} lines")
    return faults


def test_there_is_something_to_look_at() -> None:
    """The tests below hold of nothing, too."""
    assert {"__init__.py", "algorithm.py", "errors.py", "config/load.py"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_source_keeps_to_the_architecture(name: str) -> None:
    """Layering, confinement, nothing that runs data, and a size to read in one sitting."""
    text = (ROOT / name).read_text(encoding="utf-8")
    tree = ast.parse(text)
    faults = layering_faults(tree, name) + confinement_faults(tree, name)
    faults += unsafe_faults(tree, name) + long_functions(tree, name)
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        faults.append(f"{name}: {lines} lines, over {MAX_FILE_LINES}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("name", "source", "faulty"),
    [
        ("algorithm.py", "from dapo.config import Config", False),
        ("algorithm.py", "import dapo.reward", True),
        ("config/check.py", "def f():\n    from dapo import algorithm", True),
        ("config/check.py", "from .load import merge", False),
        ("data/prepare.py", "from dapo.reward import compare", True),
        ("data/prepare.py", "from ..reward import compare", True),
        ("data/prepare.py", "from dapo.data import sources", False),
        ("learner/fsdp.py", "from dapo.rollout.base import RolloutEngine", True),
        ("run/report.py", "import importlib\nimportlib.import_module('dapo.loop')", True),
        ("run/report.py", "from dapo import __version__", False),
        ("sampling.py", "from dapo.evals import x", True),
        ("errors.py", "import dapo", True),
        ("__init__.py", "from dapo.algorithm import informative", True),
        ("__init__.py", "from dapo.library.trainer import train", False),
        ("config/load.py", "from dapo.library.trainer import train", True),
        ("attic.py", "", True),
        ("learner/fsdp.py", "import torch.distributed as dist", False),
        ("loop.py", "from torch import distributed", True),
        ("loop.py", "import torch\ntorch.distributed.barrier()", True),
        ("rollout/vllm_engine.py", "from vllm import LLM", False),
        ("rollout/base.py", "from vllm import LLM", True),
        ("build.py", "import ray.util", True),
        ("cluster/proxy.py", "import ray", False),
        ("run/checkpoint.py", "from pickle import loads", True),
        ("run/checkpoint.py", "import torch\ntorch.load('x')", True),
        ("run/checkpoint.py", "from torch import load", True),
        ("run/checkpoint.py", "import numpy as np\nnp.load('x', allow_pickle=True)", True),
        ("reward/compare.py", "eval('1')", True),
        ("reward/compare.py", "exec('1')", True),
        ("learner/torch_learner.py", "model.eval()", False),
        ("loop.py", "def f():\n" + "    x = 1\n" * 50, True),
        ("loop.py", 'def f():\n    """' + "\n" * 30 + '"""\n' + "    x = 1\n" * 49, False),
    ],
)
def test_the_rules_can_be_broken(name: str, source: str, faulty: bool) -> None:
    """Each rule sees what it is for, and lets pass what it should."""
    tree = ast.parse(source)
    checks = (layering_faults, confinement_faults, unsafe_faults, long_functions)
    assert bool([fault for check in checks for fault in check(tree, name)]) is faulty


@pytest.mark.parametrize(
    "modules",
    [
        "dapo",
        "dapo.config",
        "dapo.reward",
        "dapo.rng",
        "dapo.config dapo.reward dapo.rng",
        "dapo.cli",
        "dapo.library.grade",
        "dapo.library.handle",
    ],
)
def test_light_rooms_load_no_torch(modules: str) -> None:
    """`dapo --help`, `dapo config` and `dapo grade` answer at once, and without a GPU stack."""
    names = modules.split()
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} does not exist yet")
    code = (
        f"import sys, {', '.join(names)}\n"
        "heavy = {'torch', 'transformers', 'vllm', 'ray'}\n"
        "print(*sorted({m.split('.')[0] for m in sys.modules} & heavy))"
    )
    source = str(Path(dapo.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
