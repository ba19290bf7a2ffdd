"""A tiny random model, for runs that need no download: `model.path = "random:tiny"`.

A Llama of two layers and some 77,000 weights that knows 53 tokens: digits, small letters, a few signs.
It can learn to answer in one character and which answers are common, and nothing else.
"""

from __future__ import annotations

from pathlib import Path

CHARACTERS = "0123456789 \n+-*/=?.,:()abcdefghijklmnopqrstuvwxyz"
PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"
SEED = 0


def write_tiny(folder: Path) -> None:
    """Writes the model and its tokenizer as a Hugging Face folder: the same weights every time."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = [PAD, BOS, EOS, UNKNOWN, *CHARACTERS]
    fast = Tokenizer(models.WordLevel({token: i for i, token in enumerate(vocabulary)}, unk_token=UNKNOWN))
    fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    fast.decoder = decoders.Fuse()
    fast.add_special_tokens([PAD, BOS, EOS, UNKNOWN])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token=PAD, bos_token=BOS, eos_token=EOS, unk_token=UNKNOWN
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.1,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = LlamaForCausalLM(config).float()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
