"""The sections `data` and `eval`: which problems a run trains and is tested on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from dapo.config.base import Float, Int, NullableFloat, NullableFraction, NullableInt, NullableStr, Section, Seed
from dapo.config.reward import SourceRewardConfig


class SourceConfig(Section):
    """One source of problems."""

    source: str
    """A .parquet, .jsonl, .json, .csv or .tsv file, a folder of dapo data prepare, reasoning-gym:TASK, or,
    for evaluation only, "holdout" or a named set: aime24, aime25, amc23, math500, gsm8k, olympiad, minerva,
    livecodebench."""
    name: NullableStr = None
    """Of eval.data: what the set is called in figures; "off": by its file or source."""
    weight: NullableFloat = None
    """Share of the mixture. Give all sources a weight or none; without weights every problem
    is drawn once an epoch."""
    size: Int = Field(default=1000, ge=1)
    """reasoning-gym: how many problems to generate (duplicates are dropped and counted)."""
    seed: Seed = 0
    """reasoning-gym: the generator's seed."""
    options: dict[str, Any] = Field(default={})
    """reasoning-gym: the task's own options."""
    prompt_column: str = "auto"
    """Column that holds the problem: a text or a list of chat messages. auto: the first of prompt,
    problem, question that the file's first row has."""
    answer_column: str = "auto"
    """Column that holds the gold answer. A dot goes into a struct. auto: the first of answer,
    expected_answer, final_answer, reward_model.ground_truth, ground_truth that the first row has."""
    max_rows: NullableInt = None
    """Read only the first rows."""
    reward: SourceRewardConfig = SourceRewardConfig()
    """How answers to this source's problems are judged, where that is not as [reward] says."""


class DataConfig(Section):
    """The problems and how they become prompts."""

    source: str | tuple[SourceConfig, ...]
    """One source by name, or a list of tables, each a source with its options."""
    prompt_column: str = "auto"
    """For a source given by name: the column that holds the problem."""
    answer_column: str = "auto"
    """For a source given by name: the column that holds the gold answer."""
    template: str = "chat"
    """chat: the problem as the user's turn of the tokenizer's chat template. dapo: the paper's
    wording around it, in a chat turn. raw: the bare text. Otherwise a Jinja text over the row's
    columns and `problem`, whose result is the user's turn."""
    system: NullableStr = None
    """System turn put before the user's; "off" leaves the template's own default."""
    max_prompt_tokens: Int = Field(default=2048, ge=1)
    """Longest prompt in tokens, template included."""
    rating_column: NullableStr = None
    """Column with each problem's pass rate in [0, 1], where the data are rated: its difficulty until the
    run has draws of its own. Beside pass_rate, pass_right and pass_responses are read as its counts."""
    min_pass_rate: NullableFraction = None
    """Leave out training problems rated below this (by rating_column). Unrated ones stay; all are counted,
    and the holdout is taken from what is left. Evaluation sets are never cut."""
    max_pass_rate: NullableFraction = None
    """Leave out training problems rated above this, in the same way."""
    bad_answers: Literal["refuse", "drop"] = "refuse"
    """What becomes of rows whose answer can't be graded (empty, a placeholder, unreadable): an error
    that names the first and their number, or left out and counted (as always in named sets)."""
    overlong_prompts: Literal["drop", "refuse"] = "drop"
    """What becomes of longer ones; drops are counted."""
    repeat: bool = True
    """Go on with the next epoch when the data ends; false: `sampling.on_exhausted` decides."""
    shuffle: bool = True
    """A new order every epoch, a function of (seed, epoch, index); false: the file's order."""
    holdout: Int = Field(default=0, ge=0)
    """Problems taken out of training for `eval.data = "holdout"`: of each source its share of the
    mixture, by smallest hash of the worded problem. Another wording may hold out others."""


class EvalConfig(Section):
    """Evaluation during training and the defaults of `dapo eval`."""

    data: str | tuple[str | SourceConfig, ...] = ()
    """Sets, each with figures of its own: "holdout", files, named sets (aime24, math500, ...), or tables
    as in data.source. A text with commas between, or a list. Empty: no evaluation."""
    data_dir: NullableStr = None
    """Folder in which named sets are looked for; "off": they are fetched from Hugging Face, at a
    pinned revision."""
    every: NullableInt = None
    """Evaluate after every so many steps; "off": only before the first and after the last."""
    k: Int = Field(default=32, ge=1)
    """Samples per problem; avg@k. Paper: 32."""
    temperature: Annotated[Float, Field(ge=0)] = 1.0
    """0 is greedy. Paper: 1.0."""
    top_p: Annotated[Float, Field(gt=0, le=1)] = 0.7
    """Paper: 0.7."""
    max_response_tokens: NullableInt = None
    """"off": as in training."""
    seed: Seed = 0
    """Seed of the evaluation's own draws: the same at every evaluation."""
    before: bool = True
    """Evaluate before the first step too."""
