"""model.path: every form finds its model, and what is not there is named with its mend."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from dapo.config.schema import ModelConfig
from dapo.errors import ModelError
from dapo.model import paths
from dapo.model.loading import eos_ids, load_model, load_tokenizer
from dapo.model.paths import plain_folder, resolve_model
from dapo.model.random import write_tiny


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model cache, in a place of the test's own."""
    root = tmp_path / "cache"
    monkeypatch.setattr(paths, "cache_root", lambda: root)
    return root


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the conversion; lists the targets it was asked for."""
    made: list[Path] = []

    def convert(gguf: Path, target: Path) -> None:
        made.append(target)
        target.mkdir(parents=True)
        (target / "config.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(paths, "_convert", convert)
    return made


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a model file in it."""
    folder = tmp_path / "site" / "dapo_test_package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("", encoding="utf-8")
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return folder


def model_folder(path: Path) -> Path:
    """A folder that looks like a Hugging Face one."""
    path.mkdir()
    (path / "config.json").write_text("{}", encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["Qwen/Qwen2.5-0.5B", "gpt2"])
def test_a_hugging_face_id_goes_through(name: str) -> None:
    """What is no path is transformers' to find."""
    assert resolve_model(name) == name


def test_a_local_folder_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Absolute, relative, and below the home directory."""
    folder = model_folder(tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_model(str(folder)) == str(folder)
    assert Path(resolve_model("m")).resolve() == folder.resolve()
    assert resolve_model("~/m") == str(folder)


@pytest.mark.parametrize(
    ("path", "needles"),
    [
        ("/nowhere/at/all", ["/nowhere/at/all", "no such folder"]),
        ("./nowhere", ["./nowhere", "no such folder"]),
        ("~/nowhere", ["~/nowhere", "no such folder"]),
        ("a/b/c", ["a/b/c", "no such folder"]),
        ("modelscope:Qwen/Qwen2.5-0.5B", ["modelscope:Qwen", "without a prefix", "local folder"]),
        ("hf:gpt2", ["hf:gpt2", "without a prefix"]),
        ("https://somewhere/gpt2", ["https:", "local folder"]),
        ("/nowhere/model.gguf", ["/nowhere/model.gguf", "no such file"]),
        ("pkg:dapo_no_such_package/m.gguf", ["not installed", "pip install", "dapo-no-such-package"]),
        ("pkg:dapo_no_such_package", ["pkg:PACKAGE/FILE"]),
        ("pkg:/m.gguf", ["pkg:PACKAGE/FILE"]),
        ("pkg:not-a-name/m.gguf", ["not installed"]),
        ("pkg:dapo_test_package/other.gguf", ["dapo_test_package", "no file other.gguf"]),
    ],
)
def test_what_is_not_there_is_named(path: str, needles: list[str], package: Path) -> None:
    """The message names the field, the value and what to do."""
    with pytest.raises(ModelError) as caught:
        resolve_model(path)
    assert caught.value.message.startswith("model.path = ")
    for needle in needles:
        assert needle in caught.value.message


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    """transformers' own message would be about its hub."""
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve_model(str(tmp_path))


def test_a_package_file_is_found_and_converted(package: Path, cache: Path, conversions: list[Path]) -> None:
    """pkg:PACKAGE/FILE is the file in the installed package."""
    folder = resolve_model("pkg:dapo_test_package/tiny.gguf")
    assert conversions == [Path(folder)]
    assert folder == str(plain_folder(package / "tiny.gguf"))


def test_a_gguf_file_is_converted_once(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    """The second use finds the cached folder; a moved file too, since the key is its content."""
    first, copy = tmp_path / "m.gguf", tmp_path / "elsewhere" / "m.gguf"
    copy.parent.mkdir()
    for file in (first, copy):
        file.write_bytes(b"one")
    assert resolve_model(str(first)) == resolve_model(str(first)) == resolve_model(str(copy))
    assert len(conversions) == 1
    assert conversions[0].parent == cache


def test_a_changed_gguf_file_is_converted_again(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    """A stale conversion must not answer for new weights."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    before = resolve_model(str(file))
    file.write_bytes(b"two")
    assert resolve_model(str(file)) != before
    assert len(conversions) == 2


def test_a_half_written_conversion_is_not_taken(tmp_path: Path, cache: Path, conversions: list[Path]) -> None:
    """What a crash left under the temporary name is not the target."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    target = plain_folder(file)
    left = target.with_name(target.name + ".crashed")
    target.rename(left)
    assert plain_folder(file) == target
    assert len(conversions) == 2


@pytest.mark.parametrize("missing", ["gguf", "accelerate"])
def test_gguf_without_its_packages_names_them(
    missing: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the package and the extra; nothing is left in the cache."""
    file = tmp_path / "m.gguf"
    file.write_bytes(b"one")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModelError) as caught:
        resolve_model(str(file))
    assert missing in caught.value.message
    assert "dapo-rl[demo]" in caught.value.message
    assert not [path for path in cache.iterdir() if path.is_dir()]


@pytest.mark.parametrize("content", [b"no GGUF at all, but long enough for a header", b"GGUF\x03\x00\x00\x00"])
def test_a_broken_gguf_file_is_named(content: bytes, tmp_path: Path, cache: Path) -> None:
    """A truncated download is the user's to mend, and leaves no half folder behind."""
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    file = tmp_path / "broken.gguf"
    file.write_bytes(content)
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        resolve_model(str(file))
    assert not [path for path in cache.iterdir() if path.is_dir()]


# --- the random model -------------------------------------------------------------------------------


def test_the_random_model_is_made_once_and_is_the_same_everywhere(cache: Path, tmp_path: Path) -> None:
    """A folder that transformers loads; drawn again, the same weights. torch's own generator is left alone."""
    first = Path(resolve_model("random:tiny"))
    assert first.parent == cache
    stamp = (first / "config.json").stat().st_mtime_ns
    assert Path(resolve_model("random:tiny")) == first
    assert (first / "config.json").stat().st_mtime_ns == stamp
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    write_tiny(tmp_path / "again")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()
    config = ModelConfig(path="random:tiny")
    model, tokenizer = load_model(config, torch.float32, torch.device("cpu")), load_tokenizer(config)
    assert sum(p.numel() for p in model.parameters()) == 77_440
    assert eos_ids(model, tokenizer) == (2,)
    ids = tokenizer("GCD 27 3 = é")["input_ids"]
    assert tokenizer.decode(ids) == "gcd 27 3 = <unk>"
    assert sorted(p.name for p in cache.iterdir() if not p.name.endswith(".lock")) == [first.name]


def test_another_random_model_is_refused(cache: Path) -> None:
    """There is one."""
    with pytest.raises(ModelError, match='"random:tiny"'):
        resolve_model("random:huge")
    assert not cache.exists()


def test_a_random_model_that_could_not_be_written_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written aside, then renamed: half a folder would be taken for a model the next time."""

    def torn(folder: Path) -> None:
        (folder / "config.json").write_text("{}", encoding="utf-8")
        raise OSError("disk full")

    monkeypatch.setattr(paths.random, "write_tiny", torn)
    with pytest.raises(ModelError, match="disk full"):
        resolve_model("random:tiny")
    assert [p for p in cache.iterdir() if not p.name.endswith(".lock")] == []
