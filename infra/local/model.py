"""Models made on the spot, for stores and engines of the demo: `python -m infra.local.model DIR --size-bytes N`.

The directory looks like a Llama as Hugging Face lays it out: safetensors shards with true headers and random
weights, their index, config, tokenizer. Beside them lies a much smaller GGUF that llama.cpp really runs.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.local.tiny_llama import (
    BEGIN,
    CHAT_TEMPLATE,
    CONTEXT,
    END,
    UNKNOWN,
    VOCABULARY,
    Shape,
    train_tokenizer,
    write_gguf,
)

GGUF_NAME = "tiny-llama-f16.gguf"
BF16_BYTES = 2
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return BF16_BYTES * int(np.prod(self.shape))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of the Llama in the shards; its parameters fill the size that was asked for."""

    hidden: int
    layers: int

    @property
    def feed_forward(self) -> int:
        return 4 * self.hidden

    def tensors(self) -> list[Tensor]:
        embedding = Tensor("model.embed_tokens.weight", (VOCABULARY, self.hidden))
        layers = [tensor for layer in range(self.layers) for tensor in self._layer(layer)]
        norm = Tensor("model.norm.weight", (self.hidden,))
        return [embedding, *layers, norm, Tensor("lm_head.weight", (VOCABULARY, self.hidden))]

    def _layer(self, layer: int) -> Iterator[Tensor]:
        prefix, hidden, wide = f"model.layers.{layer}", self.hidden, self.feed_forward
        yield Tensor(f"{prefix}.input_layernorm.weight", (hidden,))
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield Tensor(f"{prefix}.self_attn.{name}.weight", (hidden, hidden))
        yield Tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,))
        yield Tensor(f"{prefix}.mlp.gate_proj.weight", (wide, hidden))
        yield Tensor(f"{prefix}.mlp.up_proj.weight", (wide, hidden))
        yield Tensor(f"{prefix}.mlp.down_proj.weight", (hidden, wide))


def make_model(directory: Path, size_bytes: int, *, shards: int = 4, seed: int = 0, with_gguf: bool = True) -> None:
    """Fill `directory` with a model whose shards have about `size_bytes`. The same arguments give the same bytes."""
    if shards < 1 or size_bytes < 1:
        raise ValueError(f"A model needs at least one shard and one byte; got {shards} shards of {size_bytes} bytes.")
    directory.mkdir(parents=True, exist_ok=True)
    sizes = _sizes_for(size_bytes)
    names = [f"model-{index:05}-of-{shards:05}.safetensors" for index in range(1, shards + 1)]
    parts = _split(sizes.tensors(), shards)
    for index, (name, tensors) in enumerate(zip(names, parts, strict=True)):
        _write_shard(directory / name, tensors, np.random.default_rng((seed, index)))
    _write_json(directory / "model.safetensors.index.json", _index(dict(zip(names, parts, strict=True))))
    _write_texts(directory, sizes)
    if with_gguf:
        write_gguf(directory / GGUF_NAME, shape=Shape(), rng=np.random.default_rng(seed), name="tiny-llama")


def change_one_shard(directory: Path, *, index: int = 0, seed: int = 1) -> Path:
    """New weights for one shard, same tensors and same size: the smallest real update of a model."""
    shards = sorted(directory.glob("*.safetensors"))
    if not shards:
        raise FileNotFoundError(f"{directory} holds no *.safetensors file; make_model writes some.")
    shard = shards[index]
    with shard.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
    tensors = [Tensor(name, tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"]
    # Readers of the old file keep it: a new one takes its name.
    draft = shard.with_name(f".{shard.name}.new")
    _write_shard(draft, tensors, np.random.default_rng((seed, index)))
    draft.replace(shard)
    return shard


def _sizes_for(size_bytes: int) -> Sizes:
    """The widest Llama of at least eight layers that fits, then as many layers as fit."""
    for hidden in (2048, 1024, 512, 256, 128, 64):
        fixed, layer = (_total_bytes(Sizes(hidden, layers)) for layers in (0, 1))
        layers = (size_bytes - fixed) // (layer - fixed)
        if layers >= 8:
            return Sizes(hidden, layers)
    return Sizes(hidden=64, layers=1)


def _total_bytes(sizes: Sizes) -> int:
    return sum(tensor.size_bytes for tensor in sizes.tensors())


def _split(tensors: list[Tensor], shards: int) -> list[list[Tensor]]:
    """Tensors in order, in `shards` parts of about equal size."""
    parts: list[list[Tensor]] = [[] for _ in range(shards)]
    total = sum(tensor.size_bytes for tensor in tensors)
    before = 0
    for tensor in tensors:
        parts[min(shards - 1, before * shards // total)].append(tensor)
        before += tensor.size_bytes
    return parts


def _write_shard(path: Path, tensors: list[Tensor], rng: np.random.Generator) -> None:
    ends = [0, *accumulate(tensor.size_bytes for tensor in tensors)]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for tensor, (start, end) in zip(tensors, pairwise(ends), strict=True):
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for start in range(0, ends[-1], BLOCK_BYTES):
            file.write(_random_bf16(rng, min(BLOCK_BYTES, ends[-1] - start)).tobytes())


def _random_bf16(rng: np.random.Generator, size_bytes: int) -> NDArray[np.uint16]:
    """Small numbers of both signs and no NaN: sign and mantissa are random, the exponent is not."""
    bits = rng.integers(0, 1 << 64, size=-(-size_bytes // 8), dtype=np.uint64).view(np.uint16)
    return ((bits & np.uint16(0x80FF)) | np.uint16(0x3C00))[: size_bytes // BF16_BYTES]


def _index(parts: dict[str, list[Tensor]]) -> dict[str, Any]:
    return {
        "metadata": {"total_size": sum(tensor.size_bytes for tensors in parts.values() for tensor in tensors)},
        "weight_map": {tensor.name: name for name, tensors in parts.items() for tensor in tensors},
    }


def _write_texts(directory: Path, sizes: Sizes) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": max(1, sizes.hidden // 64),
        "num_key_value_heads": max(1, sizes.hidden // 64),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "unk_token": UNKNOWN,
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "do_sample": True})
    _write_json(directory / "tokenizer_config.json", tokenizer_config)
    train_tokenizer().save(str(directory / "tokenizer.json"))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.model", description="Make a model on the spot.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size-bytes", type=int, default=1_000_000_000)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--change-shard", type=int, metavar="INDEX", help="only give that shard new weights")
    options = parser.parse_args(argv)
    if options.change_shard is not None:
        change_one_shard(options.directory, index=options.change_shard, seed=options.seed)
    else:
        make_model(options.directory, options.size_bytes, shards=options.shards, seed=options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
