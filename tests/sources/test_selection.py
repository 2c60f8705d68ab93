from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.types import Formats, Source, SourceKind
from tasks.sources import SourceError
from tasks.sources.selection import PICKLES, is_safe, select, suffix

USUAL = [
    "config.json",
    "tokenizer.model",
    "chat_template.jinja",
    "LICENSE",
    "merges.txt",
    "model.safetensors",
    "tokenizer.model.v3",
]
names = st.sampled_from([*USUAL, "pytorch_model.bin", "x.pt", "model.gguf", "run.py", "logo.png", ".gitattributes"])
paths = st.lists(st.tuples(st.sampled_from(["", "unet/", "vae/", "a/b/"]), names).map("".join), min_size=1, unique=True)


def source(**more: object) -> Source:
    return Source(SourceKind.S3, "s3://bucket/m/", **more)  # type: ignore[arg-type]


def test_an_engine_gets_its_weights_tokenizer_and_texts() -> None:
    assert select(source(), USUAL) == sorted(USUAL)


def test_code_and_pictures_stay_at_the_source() -> None:
    assert select(source(), ["model.safetensors", "modeling_x.py", "logo.png", ".gitattributes", "tokenizer.py"]) == [
        "model.safetensors"
    ]


def test_gguf_beside_safetensors_is_kept() -> None:
    assert select(source(), ["m.gguf", "model.safetensors"]) == ["m.gguf", "model.safetensors"]


@pytest.mark.parametrize("formats", Formats)
def test_pickles_never_come_along_with_the_safetensors_of_the_same_weights(formats: Formats) -> None:
    """Pain 17: `.bin` and `.safetensors` both downloaded, twice the disk."""
    files = ["model.safetensors", "pytorch_model.bin", "original/consolidated.00.pth"]
    assert select(source(formats=formats), files) == ["model.safetensors"]


def test_pickles_of_a_part_that_has_no_safetensors_are_kept_when_allowed() -> None:
    files = ["text/model.safetensors", "unet/weights.bin"]
    assert select(source(formats=Formats.ANY), files) == files


def test_a_model_of_pickles_only_is_refused_with_its_files_and_the_way_out() -> None:
    with pytest.raises(SourceError, match=r"pytorch_model\.bin.*formats: Any") as refused:
        select(source(), ["config.json", "pytorch_model.bin"])
    assert refused.value.reason == "UnsupportedFormat"
    assert select(source(formats=Formats.ANY), ["config.json", "pytorch_model.bin"])


def test_a_place_without_weights_is_no_model() -> None:
    with pytest.raises(SourceError, match=r"no safetensors or GGUF weights; it holds \.json, \.onnx") as refused:
        select(source(), ["config.json", "m.onnx"])
    assert refused.value.reason == "UnsupportedFormat"


def test_patterns_choose_by_the_path_inside_the_model() -> None:
    files = ["fp16/model.safetensors", "fp32/model.safetensors", "config.json"]
    assert select(source(include=("fp16/*",)), files) == ["fp16/model.safetensors"]
    assert select(source(exclude=("fp32/",)), files) == ["config.json", "fp16/model.safetensors"]


def test_patterns_that_leave_nothing_are_named() -> None:
    with pytest.raises(SourceError, match=r"include \['\*\.gguf'\].*config\.json") as refused:
        select(source(include=("*.gguf",)), ["config.json", "model.safetensors"])
    assert refused.value.reason == "NotFound"


@given(paths)
def test_a_choice_is_part_of_what_is_there_and_safe(found: list[str]) -> None:
    has_safe_weights = any(suffix(path) in {".safetensors", ".gguf"} for path in found)
    with nullcontext() if has_safe_weights else pytest.raises(SourceError, match="UnsupportedFormat"):
        chosen = select(source(), found)
        assert set(chosen) <= set(found)
        assert chosen == sorted(chosen)
        assert all(is_safe(path) and suffix(path) not in PICKLES for path in chosen)
