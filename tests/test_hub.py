"""Datasets by id: Hugging Face over its own library, against a server here; ModelScope against a stand-in."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from dapo.data import hub
from dapo.data.prepare.reading import open_source
from dapo.errors import DataError

COMMIT = "a" * 40
CODE = "from dapo.cli import main; main()"


class Hub(BaseHTTPRequestHandler):
    """One dataset, org/set, with a train split of two files and a test split."""

    asked: ClassVar[list[str]] = []
    files: ClassVar[dict[str, bytes]] = {
        "README.md": b"---\nlicense: mit\n---\n",
        "data/train-00000.jsonl": b'{"problem": "What is 1 plus 1?", "answer": "2"}\n',
        "data/train-00001.jsonl": b'{"problem": "What is 2 plus 2?", "answer": "4"}\n',
        "data/test-00000.jsonl": b'{"problem": "What is 3 plus 3?", "answer": "6"}\n',
    }

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        Hub.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path.startswith("/api/datasets/org/set"):
            self.reply(
                json.dumps(
                    {
                        "id": "org/set",
                        "sha": COMMIT,
                        "siblings": [{"rfilename": name} for name in Hub.files],
                        "cardData": {"license": "mit"},
                    }
                ).encode()
            )
            return
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if path.startswith("/datasets/org/set/") and name in Hub.files:
            self.reply(Hub.files[name])
            return
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def reply(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        """Silent."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of the hub."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Hub.asked.clear()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def dapo(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with variables that huggingface_hub reads when it is imported."""
    environment = {**os.environ, "HF_HOME": str(folder / "hf"), "HF_HUB_DISABLE_XET": "1", **variables}
    return subprocess.run(
        [sys.executable, "-c", CODE, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_dataset_by_its_id(endpoint: str, tmp_path: Path) -> None:
    """The train split is read at the commit the hub names; offline, the cache is enough; without it, one line."""
    online = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    done = dapo(tmp_path, "data", "prepare", "org/set", "-o", "out", **online)
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    (source,) = card["sources"]
    assert (card["rows"], source["revision"], source["licence"]) == (2, COMMIT, "mit")
    assert [file["file"] for file in source["files"]] == [
        "org/set/data/train-00000.jsonl", "org/set/data/train-00001.jsonl",
    ]  # fmt: skip
    assert all("test-" not in path for path in Hub.asked)
    before = len(Hub.asked)
    offline = online | {"HF_HUB_OFFLINE": "1"}
    again = dapo(tmp_path, "data", "prepare", f"hf:org/set@{COMMIT}", "-o", "again", **offline)
    assert again.returncode == 0, again.stderr
    assert len(Hub.asked) == before
    lost = dapo(tmp_path, "data", "prepare", "hf:org/other", "-o", "lost", HF_HUB_OFFLINE="1")
    assert (lost.returncode, lost.stdout, lost.stderr.count("\n")) == (2, "", 1)
    assert lost.stderr.startswith("error: hf:org/other: can't be fetched: ")
    missing = dapo(tmp_path, "data", "prepare", "org/other", "-o", "lost", **online)
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert missing.stderr.startswith("error: org/other: no such file here; hf:org/other: can't be fetched: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "hf", "out"]


WANTED = hub.Reference(hub="hf:", repo="org/set", revision=None, glob=None)


@pytest.mark.parametrize(
    ("names", "glob", "chosen"),
    [
        (["a.parquet", "README.md", "dataset_infos.json"], None, ["a.parquet"]),
        (["x/train-2.csv", "x/train-1.csv", "x/test-1.csv"], None, ["x/train-1.csv", "x/train-2.csv"]),
        (["train.jsonl", "test.jsonl"], None, ["train.jsonl"]),
        (["main/train.parquet", "socratic/train.parquet"], "main/*", ["main/train.parquet"]),
        (["math-Train.v2.csv", "training.csv", "restrain.csv"], None, ["math-Train.v2.csv"]),
        (["a.csv", "data/state.json"], None, ["a.csv"]),
    ],
)  # fmt: skip
def test_files_of_a_dataset(names: list[str], glob: str | None, chosen: list[str]) -> None:
    """The train split, the only file, or those of a glob."""
    wanted = hub.Reference(hub="hf:", repo="org/set", revision=None, glob=glob)
    assert hub.choose(names, wanted) == chosen


@pytest.mark.parametrize(
    ("names", "glob", "said"),
    [
        (["main/train.parquet", "socratic/train.parquet"], None, "has several parts; name one with hf:org/set:GLOB"),
        (["a.parquet", "b.parquet"], None, "has several parts"),
        (["README.md"], None, "no .parquet, .jsonl, .json, .csv, .tsv file in it"),
        (["a.parquet"], "b*", "no table file matches b*; it has a.parquet"),
    ],
)
def test_a_choice_that_only_a_person_can_make(names: list[str], glob: str | None, said: str) -> None:
    """Several configurations are never read as one."""
    with pytest.raises(DataError) as refused:
        hub.choose(names, hub.Reference(hub="hf:", repo="org/set", revision=None, glob=glob))
    assert said in refused.value.message


def test_modelscope_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without its library one line says what to install; with it, its snapshot is read like any folder."""
    monkeypatch.setitem(sys.modules, "modelscope", None)
    with pytest.raises(
        DataError, match=r'modelscope:org/set: needs the modelscope library; pip install "dapo-rl\[modelscope\]"'
    ):
        open_source("modelscope:org/set")
    (tmp_path / "train.jsonl").write_text('{"problem": "a?", "answer": "1"}\n')
    asked = []

    def snapshot(repo: str, revision: str | None = None, allow_patterns: object = None) -> str:
        asked.append((repo, revision, allow_patterns))
        return str(tmp_path)

    library = types.ModuleType("modelscope.hub.snapshot_download")
    library.dataset_snapshot_download = snapshot  # type: ignore[attr-defined]
    for name in ("modelscope", "modelscope.hub"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "modelscope.hub.snapshot_download", library)
    source = open_source("modelscope:org/set@v1:train*", "apache-2.0")
    assert asked == [("org/set", "v1", ["train*"])]
    assert [label for label, _ in source.files] == ["org/set/train.jsonl"]
    assert source.about["licence"] == "apache-2.0"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:noname", "write it hf:OWNER/NAME"),
        ("modelscope:a/b/c", "write it modelscope:OWNER/NAME"),
        ("aime24", "a test set, not a source to train on"),
        ("mine.txt", "use a .parquet, .jsonl, .json, .csv, .tsv file"),
        ("mine.csv", "no such file"),
        ("reasoning-gym:chain_sum:many", "write it reasoning-gym:TASK[:SIZE[:SEED]]"),
    ],
)
def test_sources_that_are_none(name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake is named with what to write instead."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as refused:
        open_source(name)
    assert said in refused.value.message
