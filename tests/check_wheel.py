"""Builds wheel and sdist, looks into them, and uses the installed wheel without the checkout: `make test-wheel`.

    python tests/check_wheel.py DIST

Run by an environment that has dapo's dependencies. They are not installed again (torch alone takes minutes): the new
environment gets links to those distributions that the wheel declares, and to what these declare in turn. So one that is
used but not declared fails here. Not shown: that a resolver finds these versions, which `make test` does.

What was tested is left in DIST, with its sha256 printed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("runs/", "evals/", "benchmarks/", "build/", "dist/")  # of a checkout, at its top
NEVER = ("__pycache__", ".pyc", ".venv", ".git/", "_cache/")  # anywhere


def run(words: Sequence[str | Path], folder: Path, **environment: str) -> str:
    """stdout of a command that has to end with 0."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env={**kept, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"FAILED ({done.returncode}): {' '.join(map(str, words))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def hold(what: str, found: object, wanted: object) -> None:
    """Ends the check where two things differ that must not."""
    if found != wanted:
        sys.exit(f"FAILED: {what}: {found!r}, not {wanted!r}")
    print(f"ok: {what}")


def environment(folder: Path, *, pip: bool) -> Path:
    """A new virtual environment; its Python."""
    run([sys.executable, "-m", "venv", *([] if pip else ["--without-pip"]), folder], ROOT)
    return folder / "bin" / "python"


def tracked() -> set[str]:
    """The package's files as git has them, those not yet added included."""
    names = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "src/dapo"], ROOT).splitlines()
    return {name.removeprefix("src/") for name in names if (ROOT / name).is_file()}


def build(work: Path) -> tuple[Path, Path]:
    """(wheel, sdist), by the build backend at its pinned version, in an environment that has nothing else."""
    python = environment(work / "builder", pip=True)
    run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", "hatchling"], ROOT)
    run([python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", work / "dist"], ROOT)
    (wheel,), (sdist,) = (work / "dist").glob("*.whl"), (work / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(work / "unpacked", filter="data")
    (source,) = (work / "unpacked").iterdir()
    run([python, "-m", "hatchling", "build", "-t", "wheel", "-d", work / "again"], source)
    (again,) = (work / "again").iterdir()
    hold("the sdist builds the same wheel, bit for bit", again.read_bytes() == wheel.read_bytes(), True)
    return wheel, sdist


def look_into(wheel: Path, sdist: Path) -> None:
    """What is in them, and what is not."""
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if name.startswith("dapo/")}
    hold("the wheel's package is what git has", sorted(package ^ tracked()), [])
    for wanted in ("dapo/py.typed", "dapo/recipes/quickstart.toml", "dapo/report/page/page.html"):
        hold(f"{wanted} is in it", wanted in package, True)
    rest = {name.partition("/")[2] for name in names - package}
    hold("beside it", sorted(rest), ["METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"])
    hold("no stray file is in it", [name for name in names if stray(name) or name.startswith("tests/")], [])
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    kept = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", "tests/tiny.py"}
    hold("the sdist has what it needs", sorted(kept - inside), [])
    hold("and no byte code, runs or environments", [name for name in inside if stray(name)], [])


def stray(name: str) -> bool:
    """Whether a path is of what a checkout holds beside its files."""
    return name.startswith(FOLDERS) or any(part in name for part in NEVER)


def declared(wheel: Path, extras: Iterable[str]) -> set[str]:
    """Names of the distributions that the wheel needs with these extras, and of those that they need."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    found: set[str] = set()
    waiting = [(Requirement(text), set(extras)) for text in metadata.get_all("Requires-Dist", [])]
    while waiting:
        wanted, asked = waiting.pop()
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in asked or {""}):
            continue
        name = canonicalize_name(wanted.name)
        there = importlib.metadata.distribution(name)
        if not wanted.specifier.contains(there.version, prereleases=True):
            sys.exit(f"FAILED: {wanted}: {there.version} is installed")
        if name not in found or wanted.extras:
            waiting += [(Requirement(text), {"", *wanted.extras}) for text in there.requires or []]
        found.add(name)
    return found


def parts_of(name: str) -> Iterator[Path]:
    """Top-level files and folders of an installed distribution."""
    there = importlib.metadata.distribution(name)
    tops = {file.parts[0] for file in there.files or [] if file.parts[0] not in ("..", "__pycache__")}
    yield from (Path(str(there.locate_file(top))) for top in tops)


def link(names: Iterable[str], site: Path) -> None:
    """Links distributions of this environment into another one's site-packages."""
    for name in names:
        for source in parts_of(name):
            if not (site / source.name).exists():
                (site / source.name).symlink_to(source)


def use(wheel: Path, work: Path) -> None:
    """Installs the wheel and runs it from an empty folder."""
    python = environment(work / "user", pip=False)
    site = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], work).strip())
    link(declared(wheel, [""]), site)
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    run([*pip, wheel], work)
    empty = work / "empty"
    empty.mkdir()
    home = {"HOME": str(work / "home"), "XDG_CACHE_HOME": str(work / "home"), "HF_HUB_OFFLINE": "1"}
    dapo = python.parent / "dapo"
    place = run([python, "-c", "import dapo; print(dapo.__file__)"], empty, **home).strip()
    hold("import dapo is the installed one", Path(place).is_relative_to(site), True)
    version = wheel.name.split("-")[1]
    hold("dapo --version", run([dapo, "--version"], empty, **home).split()[-1], version)
    hold("dapo --help", "dapo train quickstart" in run([dapo, "--help"], empty, **home), True)
    listed = {line.split()[0] for line in run([dapo, "recipe", "list"], empty, **home).splitlines()}
    shipped = {path.stem for path in (ROOT / "src/dapo/recipes").glob("*.toml")}
    hold("dapo recipe list", sorted(listed ^ shipped), [])
    hold("dapo config quickstart", "train.num_steps = 7" in run([dapo, "config", "quickstart"], empty, **home), True)
    hold("dapo grade", run([dapo, "grade", r"so \boxed{x<3}", r"(-\infty,3)"], empty, **home).split()[0], "correct")
    hold("nothing was written", list(empty.iterdir()), [])
    link(declared(wheel, ["", "demo"]), site)  # the recipe's problems come from reasoning-gym
    words = ["train", "tiny", "train.num_steps=1", "eval.before=false", "--output-dir", "run"]
    run([dapo, *words], empty, OMP_NUM_THREADS="1", **home)
    hold("dapo train tiny, one step", len((empty / "run/metrics.jsonl").read_text().splitlines()), 1)
    run([dapo, "report", "run"], empty, **home)
    hold("dapo report", (empty / "run/report.html").stat().st_size > 10_000, True)


def main(target: Path) -> None:
    """Everything, in a temporary folder that is removed."""
    work = Path(tempfile.mkdtemp(prefix="dapo-wheel-"))
    try:
        wheel, sdist = build(work)
        look_into(wheel, sdist)
        use(wheel, work)
        target.mkdir(parents=True, exist_ok=True)
        for old in [*target.glob("dapo_rl-*.whl"), *target.glob("dapo_rl-*.tar.gz")]:
            old.unlink()
        for file in (wheel, sdist):
            shutil.copy2(file, target)
            print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {target.name}/{file.name}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
