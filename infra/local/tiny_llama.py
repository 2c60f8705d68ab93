"""A random Llama small enough for a laptop and real enough for llama.cpp: its tokenizer and its GGUF file.

Nothing is downloaded: the tokenizer learns from Python's own reference manual, the weights are random numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

UNKNOWN, BEGIN, END = "<unk>", "<s>", "</s>"
SPECIAL_TOKENS = (UNKNOWN, BEGIN, END, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 4096
CONTEXT = 32768

# The output rows of plain words are this much louder than the rest, so that random weights answer in words and
# hardly ever with half a UTF-8 sequence or an end of text.
WORD_GAIN = 20.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the GGUF model. The default's prefill of 2,000 tokens takes one to two seconds on one core."""

    hidden: int = 512
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    feed_forward: int = 1536

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


@cache
def train_tokenizer() -> Tokenizer:
    """A byte-level BPE of VOCABULARY tokens; the same Python gives the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((topics[name] for name in sorted(topics)), trainer)
    return tokenizer


def write_gguf(path: Path, *, shape: Shape, rng: np.random.Generator, name: str) -> None:
    """One GGUF file that llama.cpp runs: architecture, tokenizer, chat template and random half-precision weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    tokens = _add_tokenizer(writer)
    _add_weights(writer, shape, rng, tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokenizer(writer: gguf.GGUFWriter) -> list[str]:
    tokenizer = train_tokenizer()
    tokens = [token for index in range(VOCABULARY) if (token := tokenizer.id_to_token(index)) is not None]
    if len(tokens) < VOCABULARY:
        raise ValueError(f"The tokenizer learned fewer than {VOCABULARY} tokens from Python's manual; expected all.")
    special = set(SPECIAL_TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges(_merges(tokenizer))
    writer.add_bos_token_id(SPECIAL_TOKENS.index(BEGIN))
    writer.add_eos_token_id(SPECIAL_TOKENS.index(END))
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    return tokens


def _merges(tokenizer: Tokenizer) -> list[str]:
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in learned]


def _add_weights(writer: gguf.GGUFWriter, shape: Shape, rng: np.random.Generator, tokens: list[str]) -> None:
    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return rng.standard_normal((rows, columns), dtype=np.float32) * np.float32(0.02)

    def half(name: str, weights: NDArray[np.float32]) -> None:
        writer.add_tensor(name, weights.astype(np.float16))

    norm = np.ones(shape.hidden, dtype=np.float32)
    words = np.array([token[:1] == "Ġ" and token[1:].isalpha() and token[1:].isascii() for token in tokens])
    half("token_embd.weight", matrix(VOCABULARY, shape.hidden))
    half(
        "output.weight", matrix(VOCABULARY, shape.hidden) * np.where(words, WORD_GAIN, 1.0).astype(np.float32)[:, None]
    )
    writer.add_tensor("output_norm.weight", norm)
    kv = shape.kv_heads * shape.head_size
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        half(f"{block}.attn_q.weight", matrix(shape.hidden, shape.hidden))
        half(f"{block}.attn_k.weight", matrix(kv, shape.hidden))
        half(f"{block}.attn_v.weight", matrix(kv, shape.hidden))
        half(f"{block}.attn_output.weight", matrix(shape.hidden, shape.hidden))
        half(f"{block}.ffn_gate.weight", matrix(shape.feed_forward, shape.hidden))
        half(f"{block}.ffn_up.weight", matrix(shape.feed_forward, shape.hidden))
        half(f"{block}.ffn_down.weight", matrix(shape.hidden, shape.feed_forward))
        writer.add_tensor(f"{block}.attn_norm.weight", norm)
        writer.add_tensor(f"{block}.ffn_norm.weight", norm)
