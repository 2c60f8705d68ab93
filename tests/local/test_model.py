from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.local.model import change_one_shard, make_model
from infra.local.tiny_llama import VOCABULARY, train_tokenizer


def header_of(shard: Path) -> tuple[dict[str, Any], bytes]:
    """A reader of the safetensors format, as strict as the library's."""
    content = shard.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def test_every_shard_is_a_safetensors_file_whose_tensors_fill_it(model: Path) -> None:
    shards = sorted(model.glob("*.safetensors"))
    assert [shard.name for shard in shards] == [f"model-0000{index}-of-00004.safetensors" for index in (1, 2, 3, 4)]
    for shard in shards:
        header, data = header_of(shard)
        assert header.pop("__metadata__") == {"format": "pt"}
        end = 0
        for entry in header.values():
            assert entry["dtype"] == "BF16"
            assert entry["data_offsets"] == [end, end + 2 * int(np.prod(entry["shape"]))]
            end = entry["data_offsets"][1]
        assert end == len(data)
        weights = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
        assert np.isfinite(weights).all()
        assert weights.std() > 0


def test_the_index_and_the_config_speak_of_the_tensors_that_are_there(model: Path) -> None:
    index = json.loads((model / "model.safetensors.index.json").read_text())
    config = json.loads((model / "config.json").read_text())
    found = {shard.name: header_of(shard)[0] for shard in model.glob("*.safetensors")}
    assert all(name in found[shard] for name, shard in index["weight_map"].items())
    assert index["metadata"]["total_size"] == sum(len(header_of(shard)[1]) for shard in model.glob("*.safetensors"))
    embedding = found[index["weight_map"]["model.embed_tokens.weight"]]["model.embed_tokens.weight"]
    assert embedding["shape"] == [config["vocab_size"], config["hidden_size"]]
    layers = {name.split(".")[2] for name in index["weight_map"] if name.startswith("model.layers.")}
    assert len(layers) == config["num_hidden_layers"]


@pytest.mark.parametrize("size_bytes", [3_000_000, 30_000_000])
def test_the_shards_have_about_the_size_that_was_asked_for(tmp_path: Path, size_bytes: int) -> None:
    make_model(tmp_path, size_bytes, with_gguf=False)
    sizes = [shard.stat().st_size for shard in tmp_path.glob("*.safetensors")]
    assert 0.8 * size_bytes < sum(sizes) < 1.1 * size_bytes
    assert max(sizes) < 0.5 * size_bytes


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        make_model(tmp_path / name, 2_000_000, seed=seed, with_gguf=False)
    files = {path.name for path in (tmp_path / "a").iterdir()}
    assert files == {path.name for path in (tmp_path / "b").iterdir()}
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    shard = "model-00001-of-00004.safetensors"
    assert (tmp_path / "a" / shard).read_bytes() != (tmp_path / "c" / shard).read_bytes()


def test_a_changed_shard_differs_only_in_its_weights_and_leaves_open_files_alone(tmp_path: Path) -> None:
    make_model(tmp_path, 2_000_000, with_gguf=False)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with sorted(tmp_path.glob("*.safetensors"))[2].open("rb") as reader:
        changed = change_one_shard(tmp_path, index=2)
        assert reader.read() == before[changed]
    assert {path for path in tmp_path.iterdir() if path.read_bytes() != before[path]} == {changed}
    assert changed.stat().st_size == len(before[changed])
    assert header_of(changed)[0] == json.loads(before[changed][8 : 8 + struct.unpack("<Q", before[changed][:8])[0]])


def test_the_tokenizer_writes_english_in_few_tokens_and_loses_nothing() -> None:
    text = "The warm nodes keep their copy of the weights, so that a new instance can start at once. " * 20
    encoded = train_tokenizer().encode(text)
    assert train_tokenizer().decode(encoded.ids) == text
    assert len(text) / 6 < len(encoded.ids) < len(text) / 3
    assert max(encoded.ids) < VOCABULARY


def test_a_model_of_no_shards_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one shard"):
        make_model(tmp_path, 1_000_000, shards=0)
