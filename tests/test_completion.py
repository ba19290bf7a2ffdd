"""Shell completion: what each word may be, by click's own machinery, and in a real bash."""

from __future__ import annotations

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

import dapo
import helpers_run as helpers
from dapo.cli import group
from dapo.cli.completion import SHELLS, Word
from dapo.config import recipe_names
from dapo.config.keys import all_keys

SOURCE = str(Path(dapo.__file__).parents[1])


def completed(line: str) -> list[tuple[str, str]]:
    """(kind, value) of what the last word of a line may become; a blank at the end begins a new word."""
    *words, begun = line.split(" ")
    items = ShellComplete(group, {}, "dapo", "_DAPO_COMPLETE").get_completions([w for w in words if w], begun)
    return [(item.type, item.value) for item in items]


def values(line: str) -> list[str]:
    """What is offered, where the shell is left with nothing to add."""
    found = completed(line)
    assert {kind for kind, _ in found} <= {"plain"}
    return [value for _, value in found]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs in runs/, the older with checkpoints; one in a folder of its own; one with a name of two words."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("mine/a", "runs/tiny-2", "runs/tiny-1", "runs/two words")):
        (tmp_path / name).mkdir(parents=True)
        config = tmp_path / name / "config.resolved.json"
        config.write_text("{}")
        os.utime(config, (1000 - age, 1000 - age))
    for step in ("step_000007", "step_000012", "step_000012-u000001", "junk"):
        (tmp_path / "runs/tiny-1/checkpoints" / step).mkdir(parents=True)
    (tmp_path / "runs/tiny-2/checkpoints/step_000003").mkdir(parents=True)
    (tmp_path / "runs/no-run").mkdir()
    return tmp_path


# --- what is offered ---------------------------------------------------------------------------------------


def test_verbs_and_options() -> None:
    """Verbs of the command and of its groups; options by their dashes."""
    assert set(values("")) == set(group.commands)
    assert values("pro") == ["progress"]
    assert values("recipe co") == ["copy"]
    assert "--dry-run" in values("train quickstart --")
    assert values("export x y --dtype b") == ["bfloat16"]
    assert set(values("completion ")) == {"bash", "zsh", "fish"}


def test_recipes_where_a_recipe_stands() -> None:
    """The first word of verbs that take a configuration, --recipe, and every word of recipe table."""
    assert values("train quick") == ["quickstart"]
    assert values("config ") == recipe_names()
    assert values("recipe show dapo-table1-") == [f"dapo-table1-{row}" for row in range(6)]
    assert values("sample latest x --recipe rl") == ["rloo"]
    assert values("recipe table tiny rl") == ["rloo"]
    assert values("recipe diff tiny rl") == ["rloo"]
    assert values("recipe copy rl") == ["rloo"]


def test_settings_where_a_setting_stands() -> None:
    """Every key of the configuration as KEY=, beside a recipe; of dapo grade those of reward alone."""
    assert values("train tiny ") == [f"{key}=" for key in all_keys()]
    assert values("train tiny train.num_steps=3 train.num") == ["train.num_steps="]
    assert values("train train.num") == ["train.num_steps="]
    assert values("eval latest eval.k") == ["eval.k="]
    assert values("grade 7 7 reward.conv") == ["reward.convert_units="]
    assert completed("grade 7 7 trai") == [("file", "trai")]


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("algorithm.reduction=", ["minibatch", "group", "sequence", "microbatch", "constant"]),
        ("algorithm.reduction=m", ["minibatch", "microbatch"]),
        ("algorithm.std_correction=", ["0", "1"]),
        ("algorithm.clip_dual=", ["off"]),
        ("model.trust_remote_code=", ["true", "false"]),
        ("checks.ratio_one=", ["stop", "warn", "off"]),
        ("train.num_steps=", []),
        ("train.no_such=", []),
        ("train.betas=", []),
    ],
)
def test_values_that_can_be_listed(word: str, wanted: list[str]) -> None:
    """Literals, switches, and off where a knob can be off."""
    key = word.partition("=")[0]
    assert values(f"train tiny {word}") == [f"{key}={value}" for value in wanted]


def test_runs_where_a_run_stands(folder: Path) -> None:
    """latest and runs/NAME, the newest first; below a typed folder; not what a shell would cut in two."""
    assert values("train --resume ") == ["latest", "runs/tiny-2", "runs/tiny-1"]
    assert values("report runs/tiny-1 run") == ["runs/tiny-2", "runs/tiny-1"]
    assert values("browse mine/") == ["mine/a"]
    assert values("recipe verify la") == ["latest"]
    assert values("recipe diff runs/tiny-1") == ["runs/tiny-1"]


def test_steps_of_a_run(folder: Path) -> None:
    """Behind @, where a step can stand: whole steps that have a checkpoint, the last first."""
    assert values("sample runs/tiny-1@") == ["runs/tiny-1@12", "runs/tiny-1@7"]
    assert values("eval latest@") == ["latest@3"]
    assert completed("report runs/tiny-1@") == [("file", "runs/tiny-1@")]
    assert completed("sample nowhere@") == [("file", "nowhere@")]


def test_the_rest_is_left_to_the_shell(folder: Path) -> None:
    """Files and folders where a path may stand, and nothing where none may."""
    assert completed("train ./my") == [("file", "./my")]
    assert completed("train tiny --output-dir ") == [("dir", "")]
    assert completed("recipe copy tiny m") == [("file", "m")]
    assert completed("train tiny model.path=m") == [("file", "model.path=m")]
    assert completed("progress x --plot p") == [("file", "p")]
    assert completed("browse latest --find x") == []
    assert completed("train \0/") == [("file", "\0/")]


def parameters(command: click.Command) -> Iterator[click.Parameter]:
    """Those of a command and of all below it."""
    yield from command.params
    if isinstance(command, click.Group):
        for part in command.commands.values():
            yield from parameters(part)


def test_no_plain_text_is_forgotten() -> None:
    """A new verb's words complete by their metavars without a line of its own."""
    found = list(parameters(group))
    assert not [param.name for param in found if type(param.type) is type(click.STRING)]
    told = [param.type.metavar for param in found if isinstance(param.type, Word)]
    for name in ("RECIPE", "RUN", "KEY=VALUE", "FILE", "DIR"):
        assert any(name in metavar for metavar in told), name


# --- the scripts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_says_how_to_install_it(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One comment line; the same without a name where the environment names the shell."""
    code, out, err = helpers.quiet_dapo("completion", shell)
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if f"dapo completion {shell} >" in line and line.startswith("# ")]
    assert f"_DAPO_COMPLETE={'dapobash' if shell == 'bash' else shell}_complete" in out
    assert out.startswith("#compdef dapo\n") is (shell == "zsh")  # zsh reads the first line
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert helpers.quiet_dapo("completion") == (0, out, "")


@pytest.mark.parametrize("shell", ["/bin/tcsh", ""])
def test_another_shell_is_told_so(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not answered with a script that it can't read."""
    monkeypatch.setenv("SHELL", shell)
    code, out, err = helpers.quiet_dapo("completion")
    assert (code, out) == (2, "")
    assert "dapo completion bash" in err
    assert helpers.quiet_dapo("completion", "tcsh")[0] == 2


def asked(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A completion as a shell asks for it, and which heavy modules it has loaded."""
    code = (
        "import sys\nfrom dapo.cli import main\n"
        "try:\n    main([])\nexcept SystemExit as end:\n    print('exit', end.code, file=sys.stderr)\n"
        "print(sorted({'torch', 'transformers', 'scipy', 'pyarrow'} & set(sys.modules)), file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONPATH": SOURCE, **env}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({"_DAPO_COMPLETE": "dapobash_complete", "COMP_LINE": "dapo train tiny train.num_s"}, "plain,train.num_steps="),
        ({"_DAPO_COMPLETE": "bash_complete", "COMP_WORDS": "dapo train qui", "COMP_CWORD": "2"}, "plain,quickstart"),
        ({"_DAPO_COMPLETE": "zsh_complete", "COMP_WORDS": "dapo train qui", "COMP_CWORD": "2"}, "plain\nquickstart\n_"),
        ({"_DAPO_COMPLETE": "fish_complete", "COMP_WORDS": "dapo train qui", "COMP_CWORD": "qui"}, "plain,quickstart"),
    ],
    ids=["dapobash", "bash", "zsh", "fish"],
)
def test_the_answer_of_each_shell_loads_no_torch(env: dict[str, str], wanted: str) -> None:
    """Through the entry point, as the scripts call it."""
    done = asked(env)
    assert done.stdout.strip() == wanted
    assert done.stderr.split("\n")[:2] == ["exit 0", "[]"]


class Bash:
    """An interactive bash without start-up files, in a terminal of its own."""

    def __init__(self, folder: Path, path: str) -> None:
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            env = {"PATH": path, "PYTHONPATH": SOURCE, "TERM": "dumb", "HOME": str(folder), "LANG": "C.UTF-8"}
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], env)
        self.say("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; stty cols 500\n")
        self.say("source ./script; echo rea''dy\n")
        self.until("ready")

    def say(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def until(self, wanted: str) -> str:
        """What it has shown up to what is waited for."""
        text, end = "", time.monotonic() + 60
        while wanted not in text:
            assert time.monotonic() < end, text
            if select.select([self.terminal], [], [], 1)[0]:
                text += os.read(self.terminal, 4096).decode()
        return text

    def line(self, begun: str) -> str:
        """The line after a Tab at its end. It is printed between marks that the typed line does not have."""
        self.say(f"{begun}\t\x01printf '\\x3c[%s]\\x3e' \"\x05\"\n")
        return self.until("]>").rpartition("<[")[2].partition("]>")[0]

    def close(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.terminal)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_bash_completes(folder: Path) -> None:
    """Words with =, @ and dots, which bash cuts; no blank behind KEY=; files where dapo leaves them to the shell."""
    (folder / "script").write_text(helpers.quiet_dapo("completion", "bash")[1])
    (folder / "recipe-of-mine.toml").write_text("")
    command = folder / "bin" / "dapo"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dapo "$@"\n')
    command.chmod(0o755)
    bash = Bash(folder, f"{command.parent}:{os.environ['PATH']}")
    try:
        for begun, wanted in {
            "dapo tra": "dapo train ",
            "dapo train quicks": "dapo train quickstart ",
            "dapo train tiny train.num_s": "dapo train tiny train.num_steps=",
            "dapo train tiny algorithm.reduction=min": "dapo train tiny algorithm.reduction=minibatch ",
            "dapo train tiny model.trust_remote_code=": "dapo train tiny model.trust_remote_code=",
            "dapo eval runs/tiny-1@1": "dapo eval runs/tiny-1@12 ",
            "dapo train recipe-of": "dapo train recipe-of-mine.toml ",
            "dapo train --output-dir min": "dapo train --output-dir mine/",
            "~/bin/dapo recipe sh": "~/bin/dapo recipe show ",
            "FOO=1 dapo recipe sh": "FOO=1 dapo recipe show ",
        }.items():
            assert bash.line(begun) == wanted
    finally:
        bash.close()
