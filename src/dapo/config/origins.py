"""Where values come from: the grammar of provenance entries, and the origins of the defaults.

paper: PLACE                  DAPO's paper, arXiv 2503.14476, unless PLACE begins with arXiv NNNN.NNNNN
code: OWNER/REPO@HEX PLACE    7 to 40 hex digits of a commit, then the file or what it says
rebuttal: PLACE               the authors' answers to the reviews of DAPO's paper
chosen: WHY                   by whoever wrote the recipe
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dapo.config.keys import NOT_SETTINGS, all_keys, defaults, values
from dapo.config.schema import Config
from dapo.errors import ConfigError

KINDS = ("paper", "code", "rebuttal", "chosen")
DAPO_PAPER = "arXiv 2503.14476"
COMMITS = {
    "verl-project/verl": ("4f80e465c2ec79ab9c3c30ec74b9745de61d0490", "a35908ca3c9632859c58d6a2855d858918ae21dc"),
    "verl-project/verl-recipe": ("52cdedf7e0cfbc3b7d518faefcb2035b12f689f4",),
}
_CODE = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)@([0-9A-Fa-f]{7,40})\s+(\S.*)", re.ASCII)
_PAPER = re.compile(r"arXiv [0-9]{4}\.[0-9]{4,5}(v[0-9]+)?(?![0-9])")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from.

    kind: one of KINDS. place: section, equation, file or reason. repository, commit: of code alone; the commit
    is the whole hash where it is known.
    """

    kind: str
    place: str
    repository: str | None = None
    commit: str | None = None

    @property
    def paper(self) -> str | None:
        """The arXiv number of a paper's value."""
        if self.kind != "paper":
            return None
        other = _PAPER.match(self.place)
        return other[0] if other else DAPO_PAPER

    def __str__(self) -> str:
        """As it is written in a recipe, the commit by its first 7 digits."""
        code = f"{self.repository}@{(self.commit or '')[:7]} " if self.kind == "code" else ""
        return f"{self.kind}: {code}{self.place}"


def parse_origin(text: str, key: str) -> Origin:
    """A provenance entry.

    Args:
        text: as the module's grammar has it.
        key: the key it is about, for the message.

    Raises:
        ConfigError: naming the key and what is wanted.

    >>> parse_origin("code: verl-project/verl@4f80e46 recipe/dapo", "train.betas").commit
    '4f80e465c2ec79ab9c3c30ec74b9745de61d0490'
    """
    kind, colon, place = (part.strip() for part in text.partition(":"))
    place = " ".join(place.split())
    where = f"provenance of {key} = {text!r}"
    if kind not in KINDS or not colon:
        raise ConfigError(f"{where}: begin with paper:, code:, rebuttal: or chosen:, then the place")
    if not place:
        raise ConfigError(f"{where}: say where or why behind {kind}:")
    if kind == "paper" and place.lower().startswith("arxiv") and not _PAPER.match(place):
        raise ConfigError(f"{where}: write another paper as arXiv NNNN.NNNNN, then the place in it")
    if kind != "code":
        return Origin(kind, place)
    found = _CODE.fullmatch(place)
    if found is None:
        raise ConfigError(f"{where}: write code: OWNER/REPO@COMMIT PLACE, the commit as 7 to 40 hex digits")
    repository, commit, place = found[1], found[2].lower(), found[3]
    known = [whole for whole in COMMITS.get(repository, ()) if whole.startswith(commit)]
    return Origin(kind, place, repository, known[0] if len(known) == 1 else commit)


_SETTING = "paper: section 4.1"
_SCRIPT = "code: verl-project/verl@4f80e46 recipe/dapo/run_dapo_qwen2.5_32b.sh"
_TRAINER = "code: verl-project/verl@4f80e46 recipe/dapo/src/dapo_ray_trainer.py"
_ADVANTAGE = "code: verl-project/verl@4f80e46 verl/trainer/ppo/core_algos.py"
_ADAMW = "code: verl-project/verl@4f80e46 verl/workers/fsdp_workers.py"

# Of the schema's defaults, those that are the paper's or its code's. Every other is dapo's own.
DEFAULT_ORIGINS = {
    "data.max_prompt_tokens": _SCRIPT,
    "data.shuffle": "code: verl-project/verl@4f80e46 recipe/dapo/src/config/dapo_trainer.yaml",
    "sampling.schedule": _TRAINER,
    "sampling.prompts_per_step": _SETTING,
    "sampling.responses_per_prompt": _SETTING,
    "sampling.max_rounds": _SCRIPT,
    "sampling.filter": "paper: Eq. 11",
    "sampling.surplus": _TRAINER,
    "sampling.temperature": _SCRIPT,
    "sampling.max_response_tokens": _SETTING,
    "reward.overlong": "paper: Eq. 13",
    "reward.overlong_buffer_tokens": _SETTING,
    "reward.overlong_factor": _SCRIPT,
    "algorithm.advantage": "paper: Eq. 9",
    "algorithm.std_correction": f"{_ADVANTAGE} (torch.std)",
    "algorithm.advantage_eps": f"{_ADVANTAGE} (epsilon)",
    "algorithm.clip_low": _SETTING,
    "algorithm.clip_high": _SETTING,
    "algorithm.clip_dual": "paper: Eq. 10, which has no such bound",
    "algorithm.old_logprobs": _TRAINER,
    "algorithm.objective": "paper: Eq. 10",
    "algorithm.kl.place": "paper: section 2.3",
    "algorithm.kl.coef": "paper: section 2.3",
    "algorithm.entropy_coef": _SCRIPT,
    "train.updates_per_step": _SETTING,
    "train.learning_rate": _SETTING,
    "train.warmup_rollout_steps": _SETTING,
    "train.weight_decay": _SCRIPT,
    "train.betas": f"{_ADAMW} (optim_config.get)",
    "train.adam_eps": f"{_ADAMW} (torch's AdamW default)",
    "train.max_grad_norm": _SCRIPT,
    "eval.k": _SETTING,
    "eval.temperature": _SETTING,
    "eval.top_p": _SETTING,
    "eval.before": f"{_SCRIPT} (trainer.val_before_train)",
}
DEFAULT = Origin("chosen", "dapo's default")
NOT_SAID = Origin("chosen", "not said")
LABEL = Origin("chosen", "by the recipe's author")


def origin_of(config: Config, key: str) -> Origin:
    """Where a key's value comes from: the config's own entry, else that of the default it is equal to.

    Raises ConfigError for an unknown key.
    """
    if key not in set(all_keys()):
        raise ConfigError(f"unknown key {key}")
    return _origin(config, key, values(config)[key])


def origins(config: Config) -> dict[str, Origin]:
    """`origin_of` every key."""
    return {key: _origin(config, key, value) for key, value in values(config).items()}


def _origin(config: Config, key: str, value: object) -> Origin:
    if key in config.provenance:
        return parse_origin(config.provenance[key], key)
    if key in NOT_SETTINGS:
        return LABEL
    known = defaults()
    if key not in known or value != known[key]:
        return NOT_SAID
    return parse_origin(DEFAULT_ORIGINS[key], key) if key in DEFAULT_ORIGINS else DEFAULT
