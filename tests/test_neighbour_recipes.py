"""The recipes of DAPO's neighbours: each loads, is what its name says, and tells where every value comes from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import pytest

from dapo.config import load_config, recipe_names
from dapo.config.load import all_keys
from dapo.config.schema import Config

# What makes a recipe that neighbour: key -> value, None for "off". Each with the place that says so.
IDENTITY: dict[str, dict[str, Any]] = {
    "grpo-deepseekmath": {  # arXiv 2402.03300, Eq. 3 and 4, section 4.2
        "algorithm.advantage": "group",
        "algorithm.reduction": "sequence",
        "algorithm.kl.place": "loss",
        "algorithm.kl.estimator": "k3",
        "algorithm.kl.coef": 0.04,
        "sampling.responses_per_prompt": 64,
        "sampling.filter": "off",
        "train.updates_per_step": 1,
        "train.learning_rate": 1e-6,
    },
    "grpo-kl-reward": {  # the same paper's Eq. 2 for the place, verl's defaults for the weight
        "algorithm.advantage": "group",
        "algorithm.reduction": "sequence",
        "algorithm.kl.place": "reward",
        "algorithm.kl.estimator": "k1",
        "algorithm.kl.coef": 1e-3,
    },
    "dr-grpo": {  # arXiv 2503.20783, section 3.2, Table 6
        "algorithm.advantage": "mean",
        "algorithm.reduction": "constant",
        "algorithm.constant_tokens": 3000,
        "algorithm.kl.place": "off",
        "sampling.max_response_tokens": 3000,
        "sampling.responses_per_prompt": 8,
        "train.betas": (0.9, 0.95),
    },
    "rloo": {  # arXiv 2402.14740, sections 2.2, 2.3 and 3.2, appendix C
        "algorithm.advantage": "leave_one_out",
        "algorithm.reduction": "constant",
        "algorithm.constant_tokens": 1,
        "algorithm.clip_low": None,
        "algorithm.kl.place": "reward",
        "algorithm.kl.estimator": "k1",
        "algorithm.kl.coef": 0.03,
        "train.updates_per_step": 1,
    },
    "reinforce-pp": {  # arXiv 2501.03262v9, Eq. 4 and 5
        "algorithm.advantage": "batch",
        "algorithm.kl.place": "reward",
        "algorithm.kl.estimator": "k1",
        "algorithm.kl.coef": 1e-3,
    },
    "gspo": {  # arXiv 2507.18071, Eq. 5 and section 5.1
        "algorithm.objective": "gspo",
        "algorithm.reduction": "sequence",
        "algorithm.clip_low": 3e-4,
        "algorithm.clip_high": 4e-4,
        "train.updates_per_step": 4,
    },
    "cispo-minimax-m1": {  # arXiv 2506.13585, Eq. 4 and 5, section 3
        "algorithm.objective": "cispo",
        "algorithm.reduction": "group",
        "algorithm.clip_low": None,
        "algorithm.kl.place": "off",
        "sampling.filter": "correctness",
        "train.updates_per_step": 16,
        "train.betas": (0.9, 0.95),
        "train.adam_eps": 1e-15,
    },
    "lite-ppo": {  # arXiv 2508.08221, sections 3.1 and 5, appendix A.1
        "algorithm.advantage": "batch_std",
        "algorithm.reduction": "minibatch",
        "algorithm.kl.place": "off",
        "sampling.filter": "off",
        "sampling.prompts_per_step": 128,
        "sampling.temperature": 0.99,
        "reward.overlong": "none",
    },
    "clip-cov": {  # arXiv 2505.22617, section 4.3
        "algorithm.objective": "clip_cov",
        "algorithm.covariance.fraction": 2e-4,
        "algorithm.covariance.low": 1.0,
        "algorithm.covariance.high": 5.0,
        "train.updates_per_step": 8,
    },
    "kl-cov": {  # arXiv 2505.22617, section 4.3, of the 7B model
        "algorithm.objective": "kl_cov",
        "algorithm.covariance.fraction": 2e-3,
        "algorithm.covariance.kl_coef": 1.0,
        "train.updates_per_step": 8,
    },
    "prorl": {  # arXiv 2505.24864, sections 2.3.1 and 3.2
        "algorithm.clip_low": 0.2,
        "algorithm.clip_high": 0.4,
        "algorithm.kl.place": "loss",
        "algorithm.kl.reset_every": 250,  # chosen: the paper resets by hand
        "sampling.filter": "correctness",
        "sampling.temperature": 1.2,
        "train.updates_per_step": 4,
        "train.learning_rate": 2e-6,
    },
    "tis-token": {  # verl's decoupled_token_is
        "algorithm.importance_cap": 2.0,
        "algorithm.importance_level": "token",
        "algorithm.old_logprobs": "learner",
        "algorithm.clip_high": 0.28,
    },
    "tis-sequence": {  # verl's decoupled_seq_is
        "algorithm.importance_cap": 2.0,
        "algorithm.importance_level": "sequence",
        "algorithm.old_logprobs": "learner",
        "algorithm.clip_high": 0.28,
    },
}

# Set in every one of them, so that a later default changes none of them unseen.
EXPLICIT = {
    "model": {"path"},
    "data": {"source", "template"},
    "sampling": {
        *("schedule", "prompts_per_step", "responses_per_prompt", "gen_prompts", "filter"),
        *("max_response_tokens", "temperature"),
    },
    "reward": {"extract", "overlong"},
    "algorithm": {
        *("advantage", "std_correction", "advantage_eps", "clip_low", "clip_high", "clip_dual", "reduction"),
        *("objective", "entropy_coef", "kl.place", "kl.coef", "kl.estimator", "kl.reset_every"),
    },
    "train": {
        *("num_steps", "updates_per_step", "learning_rate", "warmup_rollout_steps", "weight_decay", "max_grad_norm"),
    },
    "eval": {"data", "k", "temperature", "top_p", "every"},
}
ABOUT = {"schema", "name", "description"}  # not settings: they need no origin

ORIGIN = re.compile(
    r"paper: (arXiv \d{4}\.\d{5}(v\d+)?, )?(sections?|appendix|Eq\.|Table|Algorithm) \S.*"
    r"|code: [\w.-]+/[\w.-]+@[0-9a-f]{7,40} [\w./-]+( \(.+\))?"
    r"|rebuttal: \S.*"
    r"|chosen: \S.*"
)


def tree_of(name: str) -> dict[str, Any]:
    """The TOML as it stands."""
    return tomllib.loads((resources.files("dapo.recipes") / f"{name}.toml").read_text(encoding="utf-8"))


def set_keys(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted keys that a recipe sets; what stands inside a key (tables of sources) is not gone into."""
    for name, value in tree.items():
        key = prefix + name
        if key == "provenance" or key in ABOUT:
            continue
        if isinstance(value, Mapping) and key not in set(all_keys()):
            yield from set_keys(value, key + ".")
        else:
            yield key


def value_at(config: Config, key: str) -> Any:
    """The validated value of a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def test_all_neighbours_are_shipped() -> None:
    """The parametrised tests below hold of none, too."""
    assert len(IDENTITY) == 13
    assert set(IDENTITY) <= set(recipe_names())


@pytest.mark.parametrize("name", IDENTITY)
def test_it_is_that_neighbour(name: str) -> None:
    """It loads alone, and sets what makes it that one in the file itself, not by a default."""
    tree = tree_of(name)
    assert "extends" not in tree
    assert tree["name"] == name
    assert "not run here" in tree["description"]
    config = load_config(name)
    written = set(set_keys(tree))
    for key, value in IDENTITY[name].items():
        assert key in written, key
        assert value_at(config, key) == value, key


@pytest.mark.parametrize("name", IDENTITY)
def test_it_leaves_no_setting_to_a_default(name: str) -> None:
    """A recipe is what it was when a default moves."""
    written = set(set_keys(tree_of(name)))
    wanted = {f"{section}.{leaf}" for section, leaves in EXPLICIT.items() for leaf in leaves}
    assert wanted - written == set()
    assert ("reward.overlong_buffer_tokens" in written) == ("soft" in load_config(name).reward.overlong)
    assert ("algorithm.constant_tokens" in written) == (load_config(name).algorithm.reduction == "constant")


@pytest.mark.parametrize("name", IDENTITY)
def test_every_value_has_one_origin_of_the_grammar(name: str) -> None:
    """Every key that is set, no other; a paper's place, a commit and a path, or why it was chosen."""
    tree = tree_of(name)
    origins = tree["provenance"]
    assert set(origins) == set(set_keys(tree))
    for key, origin in origins.items():
        assert ORIGIN.fullmatch(origin), f"{key}: {origin}"


@pytest.mark.parametrize("name", IDENTITY)
def test_it_opens_with_its_equation_and_its_data(name: str) -> None:
    """Comments first: what makes it different, and the command that prepares each of its folders."""
    text = (resources.files("dapo.recipes") / f"{name}.toml").read_text(encoding="utf-8")
    head = text.split("\n\n", 1)[0]
    assert all(line.startswith("#") for line in head.splitlines())
    assert re.search(r"^#   .*=", head, re.MULTILINE), "no equation"
    source = load_config(name).data.source
    for folder in [source] if isinstance(source, str) else [table.source for table in source]:
        assert f" -o {folder}" in head, folder


def test_the_two_grpos_differ_in_the_kl_alone() -> None:
    """So that a comparison of the two is one of the KL's place."""
    loss, reward = tree_of("grpo-deepseekmath"), tree_of("grpo-kl-reward")
    assert loss["algorithm"].pop("kl") != reward["algorithm"].pop("kl")
    for section in EXPLICIT:
        assert loss[section] == reward[section], section


def test_the_two_importance_weights_differ_in_their_level_alone() -> None:
    """As above."""
    token, sequence = tree_of("tis-token"), tree_of("tis-sequence")
    assert token["algorithm"].pop("importance_level") != sequence["algorithm"].pop("importance_level")
    for section in EXPLICIT:
        assert token[section] == sequence[section], section


def test_the_grammar_refuses_a_bare_claim() -> None:
    """A paper without a place, a commit that is none, a reason that is empty."""
    for origin in (
        "paper: arXiv 2402.03300",
        "paper: DeepSeekMath",
        "code: volcengine/verl docs/algo/grpo.md",
        "code: volcengine/verl@main docs/algo/grpo.md",
        "code: volcengine/verl@b178a3c",
        "chosen:",
        "chosen: ",
        "guessed: it seems right",
    ):
        assert not ORIGIN.fullmatch(origin), origin
