"""The dimensions of a decoder, and how many weights they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo.errors import ModelError

BIASED = ("qwen2", "qwen2_moe")  # model types whose query, key and value layers have biases, which config.json omits
NORMED = ("qwen3", "qwen3_moe")  # those that normalise each head's queries and keys
LARGEST = 2**31  # of one dimension; beyond it is a mistake


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A decoder with gated feed-forward layers, as Llama and Qwen are.

    layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary: counts. intermediate is of one expert.
    tied: head and embedding are one matrix. bias: of queries, keys and values. normed: queries and keys by head.
    experts: of a layer, 1 for a dense one; active: experts that a token goes through.
    weights: in all, where the source says so; else they are counted from the rest.
    source: where this comes from.
    """

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = True
    bias: bool = False
    normed: bool = False
    experts: int = 1
    active: int = 1
    weights: int | None = None
    source: str = ""

    @property
    def head(self) -> int:
        """Weights of the output matrix, also where it is the embedding."""
        return self.vocabulary * self.hidden

    @property
    def block(self) -> int:
        """Weights of one layer."""
        return self._block(self.experts)

    @property
    def total(self) -> int:
        """All weights, a tied matrix once.

        >>> smollm2 = dict(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocabulary=49152)
        >>> Shape(**smollm2).total
        134515008
        """
        if self.weights is not None:
            return self.weights
        return self.layers * self.block + self.hidden + self.head * (1 if self.tied else 2)

    @property
    def multiplied(self) -> int:
        """Weights of the body that each token is multiplied with: neither embedding nor head, and active experts."""
        outside = self.hidden + self.head * (1 if self.tied else 2)
        return max(0, self.total - outside - self.layers * (self.block - self._block(self.active)))

    @property
    def multiplied_all(self) -> int:
        """The same with all experts."""
        return max(0, self.total - self.hidden - self.head * (1 if self.tied else 2))

    @property
    def kv_numbers(self) -> int:
        """Numbers that one token leaves in a key-value cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def linear_sizes(self, attention_only: bool) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's linear layers, which adapters may stand beside."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = [(self.hidden, queries), (self.hidden, keys), (self.hidden, keys), (queries, self.hidden)]
        if attention_only or self.experts > 1:
            return attention
        wide, narrow = (self.hidden, self.intermediate), (self.intermediate, self.hidden)
        return [*attention, wide, wide, narrow]

    def _block(self, experts: int) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * queries + 2 * keys) + (queries + 2 * keys) * self.bias
        norms = 2 * self.hidden + 2 * self.head_dim * self.normed
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + norms + router + 3 * self.hidden * self.intermediate * experts


def of_config(tree: Mapping[str, Any], source: str) -> Shape:
    """The shape that a model's config.json describes.

    Raises:
        ModelError: a field is missing or is no count; the mend is to state the dimensions.
    """
    inner = tree.get("text_config")
    config = {**tree, **inner} if isinstance(inner, Mapping) else dict(tree)
    kind = str(config.get("model_type", ""))
    hidden, heads = _count(config, "hidden_size", source), _count(config, "num_attention_heads", source)
    experts = next(
        (name for name in ("num_experts", "num_local_experts", "n_routed_experts") if config.get(name)), None
    )
    wide = "moe_intermediate_size" if experts and config.get("moe_intermediate_size") else "intermediate_size"
    return Shape(
        layers=_count(config, "num_hidden_layers", source),
        hidden=hidden,
        intermediate=_count(config, wide, source),
        heads=heads,
        kv_heads=_count(config, "num_key_value_heads", source, heads),
        head_dim=_count(config, "head_dim", source, max(1, hidden // heads)),
        vocabulary=_count(config, "vocab_size", source),
        tied=bool(config.get("tie_word_embeddings", kind not in ("llama", "qwen2", "qwen3", "qwen3_moe", "mistral"))),
        bias=bool(config.get("attention_bias", kind in BIASED)) or kind in BIASED,
        normed=kind in NORMED,
        experts=1 if experts is None else _count(config, experts, source),
        active=1 if experts is None else _count(config, "num_experts_per_tok", source),
        source=source,
    )


def _count(config: Mapping[str, Any], name: str, source: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise ModelError(
            f"{source}: {name} = {value!r} is no count; state the dimensions with --layers, --hidden, --intermediate, "
            "--heads, --kv-heads and --vocabulary"
        )
    return value
