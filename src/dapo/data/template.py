"""From a problem to the token ids of its prompt: wording, chat template, exactly one BOS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.sandbox

from dapo.config.schema import Config
from dapo.errors import ConfigError, DataError, ModelError

Message = Mapping[str, str]

# The paper's prompt, as its published data carry it (REFERENCE: DAPO-Math-17k).
DAPO_WORDING = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
    "{{ problem }}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


class Wording:
    """What the user's turn says about a problem: `data.template`, without any tokenizer."""

    def __init__(self, template: str) -> None:
        self.raw = template == "raw"
        self._template = None if template in ("chat", "raw") else _compile(template)

    def turns(self, problem: Any, columns: Mapping[str, Any], where: str) -> tuple[Message, ...] | None:
        """The chat turns of a problem, or None for raw text. Raises DataError naming the row."""
        if isinstance(problem, (list, tuple)):
            if self.raw or self._template is not None:
                raise DataError(
                    f'{where}: the prompt is a list of messages; data.template = "chat" takes those; for another, '
                    "store the bare problems with: dapo data prepare FILE -o DIR"
                )
            return _checked_turns(problem, where)
        if not isinstance(problem, str) or not problem.strip():
            raise DataError(f"{where}: the prompt is empty or no text")
        return None if self.raw else ({"role": "user", "content": self._word(problem, columns, where)},)

    def _word(self, problem: str, columns: Mapping[str, Any], where: str) -> str:
        if self._template is None:
            return problem
        try:
            return self._template.render(**{**columns, "problem": problem})
        except Exception as error:  # a template may raise anything
            has = ", ".join(["problem", *map(str, columns)])
            raise DataError(f"{where}: data.template: {error} (it can use {has}); set data.template") from None


def _compile(template: str) -> jinja2.Template:
    text = DAPO_WORDING if template == "dapo" else template
    if "{{" not in text:
        raise ConfigError(
            f'data.template = "{_short(text)}": use chat, dapo, raw, or a Jinja text such as '
            '"What is {{ problem }}?"'
        )
    environment = jinja2.sandbox.SandboxedEnvironment(undefined=jinja2.StrictUndefined)
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f'data.template = "{_short(text)}": {error}') from None


class PromptTemplate:
    """Renders and encodes prompts as `data.template`, `data.system` and the model's template say."""

    def __init__(self, config: Config, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._system = config.data.system
        self._chat_arguments = config.model.chat_template_kwargs
        self._wording = Wording(config.data.template)
        if not self._wording.raw and not getattr(tokenizer, "chat_template", None):
            raise ModelError(
                f'data.template = "{_short(config.data.template)}": this tokenizer has no chat template; '
                'use data.template = "raw"'
            )
        if self._wording.raw and self._system:
            raise ConfigError('data.system is set, but data.template = "raw" has no system turn; remove one')
        self.bos = _wanted_bos(tokenizer)
        self._template_writes_bos = self.bos is not None and self.bos in self._template_ids()

    def _template_ids(self) -> list[int]:
        """Token ids of the chat template around a plain word; none without a chat template."""
        if self._wording.raw:
            return []
        turns: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        ids: list[int] = self._tokenizer(
            self._rendered([*turns, {"role": "user", "content": "a"}]), add_special_tokens=False
        )["input_ids"]
        return ids

    def _rendered(self, messages: Sequence[Message]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **self._chat_arguments
            )
        except jinja2.TemplateError as error:
            raise ModelError(f"the tokenizer's chat template: {error}") from None
        return text

    def messages(self, problem: Any, columns: Mapping[str, Any], where: str) -> tuple[Message, ...] | None:
        """The chat turns of a problem, the system turn included, or None for raw text. Raises DataError."""
        turns = self._wording.turns(problem, columns, where)
        if turns is not None and self._system and turns[0]["role"] != "system":
            turns = ({"role": "system", "content": self._system}, *turns)
        return turns

    def encode(self, messages: Sequence[Message] | None, text: str) -> tuple[str, list[int]]:
        """(prompt text, token ids) with exactly one BOS where the tokenizer wants one."""
        if messages is not None:
            text = self._rendered(messages)
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        written = messages is not None and self._template_writes_bos  # maybe behind other text
        if self.bos is not None and not written and ids[:1] != [self.bos]:
            ids = [self.bos, *ids]
        own = getattr(self._tokenizer, "bos_token_id", None)
        if own is not None and ids[:2] == [own, own]:
            raise ModelError("the prompt begins with two BOS tokens; mend the chat template or the problem's text")
        return text, ids


def _wanted_bos(tokenizer: Any) -> int | None:
    """The BOS id when the tokenizer puts it before plain text by itself."""
    bos: int | None = getattr(tokenizer, "bos_token_id", None)
    return bos if bos is not None and tokenizer("a")["input_ids"][:1] == [bos] else None


def _checked_turns(problem: Sequence[Any], where: str) -> tuple[Message, ...]:
    for turn in problem:
        if not (
            isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and isinstance(turn.get("content"), str)
        ):
            raise DataError(f"{where}: a message needs a role and a content, both texts")
    if not problem:
        raise DataError(f"{where}: the prompt is an empty list of messages")
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in problem)


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
