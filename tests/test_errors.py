"""Error codes: the table, the command that explains them, and memory that runs out."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import helpers_run as helpers
from dapo import errors, stopping
from dapo.config.load import all_keys, load_config
from dapo.error_table import SECTIONS, TROUBLE, kinds, page
from dapo.out_of_memory import ELSEWHERE, PHASES, ran_out
from dapo.spans import span
from dapo.types import TrainState

DOCS = Path(__file__).parents[1] / "docs"
TOLD = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79 GiB")


def anchors(text: str) -> set[str]:
    """What GitHub makes of the headings of a page, and anchors written by hand."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


# --- codes ---------------------------------------------------------------------------------------------


def test_every_class_has_a_code_of_its_own() -> None:
    """One inherited from its base would lead to the wrong explanation."""
    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.DapoError)]
    assert all("code" in vars(kind) and kind.__doc__ for kind in found)
    assert list(kinds().values()) == found
    assert [code for code in kinds() if not re.fullmatch(r"E-[A-Z]+(-[A-Z]+)?", code)] == []


def test_the_page_is_made_of_the_classes() -> None:
    """docs/errors.md: `make error-docs`."""
    assert (DOCS / "errors.md").read_text(encoding="utf-8") == page()


def test_the_sections_to_read_are_there() -> None:
    """Of codes that exist; and in the page, once there is one."""
    assert SECTIONS.keys() <= kinds().keys()
    if (DOCS / TROUBLE).is_file():
        there = anchors((DOCS / TROUBLE).read_text(encoding="utf-8"))
        assert {code: anchor for code, anchor in SECTIONS.items() if anchor not in there} == {}


def test_anchors_of_a_page() -> None:
    """As GitHub writes them."""
    assert anchors('# A `b.c`, d\n\n<a id="e"></a>\ntext # f\n') == {"a-bc-d", "e"}


def test_a_code_is_explained() -> None:
    """Its meaning and where to read on; small letters do."""
    code, out, err = helpers.quiet_dapo("explain", "e-resume")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "E-RESUME (exit code 2, dapo.errors.ResumeRefused)"
    assert errors.ResumeRefused.__doc__ in out
    assert TROUBLE in out
    assert helpers.quiet_dapo("explain")[1].count("\n") == len(kinds())


def test_a_code_that_is_not_there() -> None:
    """The nearest one is named; the code of that error is one too."""
    code, out, err = helpers.quiet_dapo("explain", "E-RESUM")
    assert (code, out) == (2, "")
    assert err == "error: E-RESUM: no such error code; did you mean E-RESUME?  [dapo explain E-USER]\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("config", "tiny", "train.num_steps=0"), "E-CONFIG"),
        (("config", "tiny", "schema=9"), "E-VERSION"),
        (("grade", "1", ""), "E-GOLD"),
    ],
)
def test_what_is_refused_has_its_code(words: tuple[str, ...], code: str) -> None:
    """At the end of the one line."""
    assert helpers.quiet_dapo(*words)[2].endswith(f"  [dapo explain {code}]\n")


@pytest.mark.parametrize(("model", "code"), [("no-such-owner/no-such-model", "E-HUB"), ("{}/empty", "E-MODEL")])
def test_whose_fault_a_model_is(model: str, code: str, tmp_path: Path) -> None:
    """The hub's, which does not answer here, or the folder's."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    ended, _, err = helpers.quiet_dapo("sample", model.format(tmp_path), "a question")
    assert ended == 2
    assert err.splitlines()[-1].endswith(f"  [dapo explain {code}]")


def test_a_run_of_other_data_is_refused_with_its_code(tmp_path: Path) -> None:
    """--resume, after the data were changed: the page says what may be done."""
    run = helpers.train(tmp_path, "train.num_steps=1")
    helpers.write_rows(tmp_path / "data.jsonl", helpers.problems(39))
    code, _, err = helpers.quiet_dapo("train", "--resume", run, "train.num_steps=2")
    assert code == 2
    assert err.splitlines()[-1].endswith("  [dapo explain E-RESUME]")


# --- memory --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (TOLD, True),
        (MemoryError(), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:130] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("can't allocate memory: you tried"), False),
    ],
    ids=["device", "host", "torch on the host", "another fault", "another class"],
)
def test_what_running_out_of_memory_is(error: BaseException, is_memory: bool) -> None:
    """Not every error that has the word in it."""
    assert ran_out(error) is is_memory


def test_torch_says_so_in_these_words() -> None:
    """The host's allocator has no class of its own; if its words change, this fails."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert ran_out(caught.value)


@pytest.mark.parametrize("phase", [*PHASES, ELSEWHERE], ids=lambda phase: phase.kind.__name__)
def test_knobs_are_keys_of_the_configuration(phase: Any) -> None:
    """A knob that is not there mends nothing."""
    assert set(phase.knobs) <= set(all_keys())
    assert phase.knobs


WHERE = {  # what runs out, its code, and a knob with its value, where the line has one
    "dapo.build.load_model": ("E-MEMORY-LOADING", "engine.slots"),
    "dapo.rollout.torch_engine.TorchEngine._step": ("E-MEMORY-SAMPLING", "engine.slots = 16"),
    "dapo.learner.torch_learner.TorchLearner._forward": ("E-MEMORY-LOGPROBS", "train.tokens_per_microbatch = 128"),
    "dapo.learner.torch_learner.TorchLearner._backward": ("E-MEMORY-UPDATE", "train.gradient_checkpointing = false"),
}


@pytest.mark.parametrize("error", [TOLD, MemoryError()], ids=["device", "host"])
@pytest.mark.parametrize("place", WHERE)
def test_the_command_tells_it_in_one_line(
    place: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the line; 2 where nothing was trained, 3 where the state is saved and the run goes on."""
    code_word, needle = WHERE[place]

    def run_out(*arguments: Any, **named: Any) -> None:
        raise type(error)(*error.args)

    words = ("eval.before=false", "algorithm.old_logprobs=learner", "--output-dir", tmp_path / "run")
    recipe = helpers.write_recipe(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(place, run_out)
        code, _, err = helpers.quiet_dapo("train", recipe, *words)
    last = err.splitlines()[-1]
    assert "Traceback" not in err
    assert needle in last
    assert last.endswith(f"  [dapo explain {code_word}]")
    if place == "dapo.build.load_model":
        assert (code, last.startswith("error: ")) == (2, True)
        return
    assert (code, last.startswith("stopped: ")) == (3, True)
    again, _, err = helpers.quiet_dapo("train", "--resume", tmp_path / "run")
    assert again == 0, err


@pytest.mark.parametrize("error", [TOLD, MemoryError()], ids=["device", "host"])
@pytest.mark.parametrize(
    ("inner", "outer", "kind"),
    [
        ("decode", "sampling", errors.OutOfMemorySampling),
        ("log-probs", "batch", errors.OutOfMemoryLogprobs),
        ("forward", "update", errors.OutOfMemoryUpdating),
        ("decode", "evaluation", errors.OutOfMemoryEvaluating),
        ("sync", "x", errors.RunOutOfMemory),
    ],
)
def test_a_run_is_saved_and_the_phase_is_told(
    error: Exception, inner: str, outer: str, kind: type[errors.RunOutOfMemory]
) -> None:
    """The innermost part that has a name; the knobs with their values; how to go on."""
    saved, parts = fake_parts()
    fresh = type(error)(*error.args)
    with pytest.raises(kind) as caught, stopping.saved_on_error(parts, TrainState(step=3)), span(outer), span(inner):
        raise fresh
    assert type(caught.value) is kind
    assert [state.step for state in saved] == [3]
    message = caught.value.message
    assert message.startswith("out of memory ")
    assert message.endswith("stopped after step 3; go on with: dapo train --resume r")
    assert "engine.slots = 256" in message or "train.tokens_per_microbatch = 4096" in message
    assert ("Tried to allocate 2.00 GiB" in message) is (error is TOLD)
    assert pickle.loads(pickle.dumps(caught.value)).code == kind.code


def test_a_state_that_could_not_be_saved_is_not_promised() -> None:
    """A disk that is full too, or no memory for the copy."""
    for failure, said in ((errors.SaveFailed("disk full"), "disk full"), (MemoryError(), "MemoryError")):
        _, parts = fake_parts(failure)
        saving = stopping.saved_on_error(parts, TrainState(step=3))
        with pytest.raises(errors.OutOfMemoryUpdating) as caught, saving, span("update"):
            raise MemoryError
        assert caught.value.message.endswith(f"the state was not saved: {said}")


def fake_parts(failure: Exception | None = None) -> tuple[list[TrainState], Any]:
    """(what was saved, parts of a run at r)."""
    saved = list[TrainState]()

    def ensure(state: TrainState, learning_rate: float) -> None:
        saved.append(state)
        if failure:
            raise failure

    return saved, SimpleNamespace(
        config=load_config("tiny"),
        saver=SimpleNamespace(ensure=ensure),
        run=SimpleNamespace(path=Path("r")),
        view=SimpleNamespace(say=lambda text: None),
    )
