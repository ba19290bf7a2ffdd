"""A tiny random model with a tokenizer of characters, for tests of everything that needs a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dapo.types import Prompt

PAD, BOS, EOS, TURN = "<pad>", "<bos>", "<eos>", "<turn>"
CHARACTERS = "0123456789 +-*=?.abcdefghijklmnopqrstuvwxyz:ANSWERTH\n\\{}"
VOCABULARY = [PAD, BOS, EOS, TURN, *dict.fromkeys(CHARACTERS)]
EOS_ID = VOCABULARY.index(EOS)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}<turn>{% endfor %}"
    "{% if add_generation_prompt %}{% endif %}"
)


def tokenizer() -> Any:
    """One token a character; a chat template that writes the BOS itself."""
    fast = Tokenizer(models.WordLevel({token: i for i, token in enumerate(VOCABULARY)}, unk_token=PAD))
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([PAD, BOS, EOS, TURN])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast, pad_token=PAD, bos_token=BOS, eos_token=EOS)
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def model(seed: int = 0, *, kv_heads: int = 2, scale: float = 0.3, tied: bool = True, head_dim: int = 8) -> Any:
    """A random Llama of 2 layers, in float32 and eval mode. `scale` spreads its logits."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=scale,
        tie_word_embeddings=tied,
        bos_token_id=VOCABULARY.index(BOS),
        eos_token_id=EOS_ID,
        pad_token_id=VOCABULARY.index(PAD),
    )
    return LlamaForCausalLM(config).float().eval().requires_grad_(False)


def folder(path: Path, seed: int = 0, **kwargs: Any) -> Path:
    """A Hugging Face folder of the tiny model and its tokenizer."""
    model(seed, **kwargs).save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def prompt(token_ids: Sequence[int], *, answer: str | None = "7", name: str = "p") -> Prompt:
    """A prompt of given token ids."""
    return Prompt(
        id=name,
        messages=None,
        text=name,
        answer=answer,
        source="test",
        token_ids=np.asarray(token_ids, dtype=np.int32),
    )
