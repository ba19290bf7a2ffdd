"""Prompts: the wording, the chat template once, and exactly one BOS where the tokenizer wants one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

import tiny
from dapo.config import load_config
from dapo.data import PromptTemplate
from dapo.errors import ConfigError, DataError, ModelError, UserError

BOS_ID, TURN_ID = tiny.VOCABULARY.index(tiny.BOS), tiny.VOCABULARY.index(tiny.TURN)
PLAIN = "{% for message in messages %}{{ message['content'] }}<turn>{% endfor %}"
WHERE = "a.jsonl, row 7"


def tokenizer(*, adds_bos: bool = False, adds_eos: bool = False, template: str | None = tiny.CHAT_TEMPLATE) -> Any:
    """The tiny tokenizer, which puts a BOS before plain text, or an EOS after it, if asked."""
    made = tiny.tokenizer()
    made.chat_template = template
    if adds_bos or adds_eos:
        single = f"{tiny.BOS + ' ' if adds_bos else ''}$A{' ' + tiny.EOS if adds_eos else ''}"
        made.backend_tokenizer.post_processor = TemplateProcessing(
            single=single, special_tokens=[(tiny.BOS, BOS_ID), (tiny.EOS, tiny.EOS_ID)]
        )
    return made


def template(made: Any = None, /, **data: Any) -> PromptTemplate:
    """A PromptTemplate under these data.* knobs (model.* by their whole name)."""
    layer = {key if "." in key else f"data.{key}": value for key, value in data.items()}
    return PromptTemplate(load_config({"model.path": "m", "data.source": "d.jsonl"}, layer), made or tokenizer())


def render(made: PromptTemplate, problem: Any, columns: Mapping[str, Any] | None = None) -> str:
    """The user's turn."""
    messages = made.messages(problem, columns or {}, WHERE)
    assert messages is not None
    return messages[-1]["content"]


# --- one BOS --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("adds_bos", "chat", "bos"),
    [
        (True, "{{ bos_token }}" + PLAIN, 1),  # both would write it (K3)
        (True, PLAIN, 1),  # only the tokenizer
        (False, "{{ bos_token }}" + PLAIN, 1),  # only the template
        (False, PLAIN, 0),  # nobody wants one
    ],
)
def test_exactly_one_bos(adds_bos: bool, chat: str, bos: int) -> None:
    """Whoever writes it, a prompt has one BOS where one is wanted, and none elsewhere."""
    made = tokenizer(adds_bos=adds_bos, template=chat)
    prompt = template(made)
    ids = prompt.encode(prompt.messages("ab", {}, WHERE), "")[1]
    assert ids == [BOS_ID] * bos + [tiny.VOCABULARY.index("a"), tiny.VOCABULARY.index("b"), TURN_ID]


@pytest.mark.parametrize("before", ["ba", "{% if true %}a{% endif %}", "{{ messages[0]['role'][0] }}"])
def test_a_template_may_write_its_bos_behind_other_text(before: str) -> None:
    """Then none is put in front of it: that would be the second."""
    made = tokenizer(adds_bos=True, template=before + "{{ bos_token }}" + PLAIN)
    prompt = template(made)
    ids = prompt.encode(prompt.messages("ab", {}, WHERE), "")[1]
    assert ids.count(BOS_ID) == 1
    assert ids[0] != BOS_ID


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("times", [2, 3])
def test_a_template_that_writes_two_is_refused(adds_bos: bool, times: int) -> None:
    """Two BOS shift the model off its training, whether or not the tokenizer adds one to plain text."""
    prompt = template(tokenizer(adds_bos=adds_bos, template="{{ bos_token }}" * times + PLAIN))
    with pytest.raises(ModelError, match="BOS"):
        prompt.encode(prompt.messages("ab", {}, WHERE), "")


@pytest.mark.parametrize(("adds_bos", "text"), [(True, "ab"), (True, "<bos>ab"), (False, "ab")])
def test_raw_text(adds_bos: bool, text: str) -> None:
    """Raw: the bare text, with the tokenizer's own BOS once; no chat template is needed."""
    prompt = template(tokenizer(adds_bos=adds_bos, template=None), template="raw")
    assert prompt.messages(text, {}, WHERE) is None
    shown, ids = prompt.encode(None, text)
    assert shown == text
    assert ids == [BOS_ID] * adds_bos + [tiny.VOCABULARY.index("a"), tiny.VOCABULARY.index("b")]


def test_no_eos_after_the_prompt() -> None:
    """A tokenizer that ends plain text with EOS must not end the prompt."""
    made = tokenizer(adds_bos=True, adds_eos=True)
    assert made("ab")["input_ids"][-1] == tiny.EOS_ID
    prompt = template(made)
    letters = [tiny.VOCABULARY.index(letter) for letter in "ab"]
    assert prompt.encode(prompt.messages("ab", {}, WHERE), "")[1] == [BOS_ID, *letters, TURN_ID]
    assert prompt.encode(None, "ab")[1] == [BOS_ID, *letters]


# --- the chat template ----------------------------------------------------------------------------


def test_the_template_is_applied_once_with_a_generation_prompt_and_its_arguments() -> None:
    """add_generation_prompt is on, chat_template_kwargs reach the template."""
    chat = PLAIN + "{% if add_generation_prompt %}{{ 'no' if enable_thinking is false else 'yes' }}{% endif %}"
    made = tokenizer(template=chat)
    assert template(made).encode(template(made).messages("ab", {}, WHERE), "")[0] == "ab<turn>yes"
    quiet = template(made, **{"model.chat_template_kwargs": {"enable_thinking": False}})
    assert quiet.encode(quiet.messages("ab", {}, WHERE), "")[0] == "ab<turn>no"


def test_a_system_turn() -> None:
    """data.system goes before the user's turn, and never before one that the row brings along."""
    prompt = template(system="be brief")
    system, user = {"role": "system", "content": "be brief"}, {"role": "user", "content": "ab"}
    assert prompt.messages("ab", {}, WHERE) == (system, user)
    assert prompt.messages([user], {}, WHERE) == (system, user)
    own = {"role": "system", "content": "be long"}
    assert prompt.messages([own, user], {}, WHERE) == (own, user)
    assert template().messages("ab", {}, WHERE) == (user,)
    assert prompt.encode((system, user), "")[0] == "<bos>be brief<turn>ab<turn>"


def test_messages_keep_their_turns() -> None:
    """verl's lists of messages pass through with role and content alone."""
    turns = [{"role": "user", "content": "a", "name": "x"}, {"role": "assistant", "content": "b"}]
    assert template().messages(turns, {}, WHERE) == tuple(
        {"role": turn["role"], "content": turn["content"]} for turn in turns
    )


@pytest.mark.parametrize("wording", ["raw", "dapo", "Q: {{ problem }}"])
def test_messages_need_the_chat_template(wording: str) -> None:
    """A list of turns can't be worded again: refused, not stringified."""
    with pytest.raises(DataError, match=rf"{WHERE}: .*data\.template = \"chat\"") as caught:
        template(template=wording).messages([{"role": "user", "content": "a"}], {}, WHERE)
    assert "dapo data prepare FILE -o DIR" in caught.value.message


def test_what_a_base_model_lacks() -> None:
    """No chat template: refused with the mend; raw has no system turn."""
    with pytest.raises(ModelError, match=r'use data\.template = "raw"'):
        template(tokenizer(template=None))
    with pytest.raises(ConfigError, match=r"data\.system"):
        template(template="raw", system="be brief")


def test_a_chat_template_that_refuses_is_the_users_mistake() -> None:
    """Some templates (Gemma's) raise on a system turn: one clear line, no traceback."""
    chat = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + PLAIN
    prompt = template(tokenizer(template=chat), system="be brief")
    with pytest.raises(UserError, match="no system role") as caught:
        prompt.encode(prompt.messages("ab", {}, WHERE), "")
    assert len(caught.value.message.splitlines()) == 1


# --- wording --------------------------------------------------------------------------------------


def test_the_papers_wording() -> None:
    """As DAPO-Math-17k carries it."""
    assert render(template(template="dapo"), "1 + 1?") == (
        "Solve the following math problem step by step. The last line of your response should be of the form "
        "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n1 + 1?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )


def test_chat_words_nothing() -> None:
    """chat: the problem as it stands, Jinja marks in it included."""
    assert render(template(), "{{ 1 + 1 }}") == "{{ 1 + 1 }}"


def test_a_jinja_wording_sees_the_problem_and_the_columns() -> None:
    """Columns by name; `problem` is the problem even where a column has that name; no HTML escaping."""
    made = template(template="[{{ level }}] {{ problem }}{% if level > 2 %}!{% endif %}")
    assert render(made, "a < b & 'c'", {"level": 3, "problem": "other"}) == "[3] a < b & 'c'!"


def test_a_problem_is_no_template() -> None:
    """Jinja in a row is text: only the recipe's own template is run."""
    assert render(template(template="Q: {{ problem }}"), "{{ 7 * 7 }}{% endif %}") == "Q: {{ 7 * 7 }}{% endif %}"


@pytest.mark.parametrize("wording", ["{{ problem", "{{ problem }}{% if %}", "{{ problem | nope }}", "{% for %}{{ x }}"])
def test_a_syntax_error_is_found_at_the_start(wording: str) -> None:
    """Before any row, naming the knob."""
    with pytest.raises(ConfigError, match=r"data\.template = ") as caught:
        template(template=wording)
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize("wording", ["chatt", "What is it?", ""])
def test_a_template_without_a_place_for_the_problem_is_refused(wording: str) -> None:
    """A misspelt name is no wording."""
    with pytest.raises(ConfigError, match=r"use chat, dapo, raw, or a Jinja text"):
        template(template=wording)


@pytest.mark.parametrize(
    "wording",
    [
        "{{ level }} {{ problem }}",  # no such column in this row
        "{{ problem.nope }}",
        "{{ problem }}{{ 1 / 0 }}",
        "{{ problem + 1 }}",
        "{{ problem() }}",
        "{{ problem }}{% for i in range(10 ** 12) %}x{% endfor %}",
        "{{ ''.__class__ }}",
        "{{ problem.__class__.__mro__[1].__subclasses__() }}",
        "{{ problem | attr('__class__') }}",
        "{{ problem.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ '{0.__class__}'.format(problem) }}",
    ],
)
def test_what_fails_on_a_row_names_the_row(wording: str) -> None:
    """An undefined column, an arithmetic slip, a way out of the sandbox: a DataError, never the interpreter."""
    made = template(template=wording)
    with pytest.raises(DataError) as caught:
        render(made, "ab")
    assert caught.value.message.startswith(f"{WHERE}: data.template: ")
    assert len(caught.value.message.splitlines()) == 1


@pytest.mark.parametrize("problem", ["", "  \n", None, 5, {"a": 1}])
@pytest.mark.parametrize("wording", ["chat", "raw", "dapo"])
def test_an_empty_problem_is_refused(problem: Any, wording: str) -> None:
    """Whatever the wording around it."""
    with pytest.raises(DataError, match=f"{WHERE}: the prompt is empty or no text"):
        template(template=wording).messages(problem, {}, WHERE)
