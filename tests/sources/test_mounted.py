from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks.plan.types import Source, SourceKind
from tasks.sources import SourceError, resolve


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "fsx" / "llama"
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "sub" / "model.safetensors").write_bytes(b"weights")
    (directory / ".cache").mkdir()
    (directory / ".cache" / "old.safetensors").write_bytes(b"no")
    return directory


def source(directory: Path | str) -> Source:
    return Source(SourceKind.FILE, f"file://{directory}")


def refuse(wanted: Source) -> SourceError:
    with pytest.raises(SourceError) as refused:
        resolve(wanted)
    return refused.value


def test_files_are_pinned_by_size_and_time(model: Path) -> None:
    manifest = resolve(source(model))
    assert [file.path for file in manifest.files] == ["config.json", "sub/model.safetensors"]
    status = (model / "sub" / "model.safetensors").stat()
    assert manifest.files[1].pin == f"stat:7-{status.st_mtime_ns}"
    assert manifest.files[1].size_bytes == 7


def test_a_rewritten_file_makes_another_revision(model: Path) -> None:
    before = resolve(source(model)).digest
    os.utime(model / "sub" / "model.safetensors", ns=(1, 1))
    assert resolve(source(model)).digest != before


def test_a_link_to_a_file_outside_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    """Pain 20: what the model does not own must not be cached."""
    (tmp_path / "secret.json").write_text("{}")
    (model / "tokenizer.json").symlink_to(tmp_path / "secret.json")
    refused = refuse(source(model))
    assert refused.reason == "PermissionDenied"
    assert "'tokenizer.json'" in refused.message
    assert "secret.json" in refused.message


def test_a_link_to_a_file_of_the_model_is_that_file(model: Path) -> None:
    (model / "a.safetensors").symlink_to("sub/model.safetensors")
    assert [file.size_bytes for file in resolve(source(model)).files] == [7, 2, 7]


def test_a_directory_outside_is_not_walked_into(model: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x.safetensors").write_bytes(b"x")
    (model / "linked").symlink_to(tmp_path / "other")
    assert all("linked" not in file.path for file in resolve(source(model)).files)


def test_a_broken_link_is_a_source_at_work(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.ATTEMPTS", 1)
    (model / "b.safetensors").symlink_to("nowhere.safetensors")
    assert refuse(source(model)).reason == "SourceChanged"


def test_a_pipe_in_the_place_of_weights_is_refused(model: Path) -> None:
    os.mkfifo(model / "pipe.safetensors")
    assert refuse(source(model)).reason == "UnsupportedFormat"


@pytest.mark.parametrize("uri", ["file://relative/path", "file:///", "file:///no/such/mount", "/mnt/models"])
def test_what_is_no_directory_is_refused(uri: str) -> None:
    assert refuse(Source(SourceKind.FILE, uri)).reason == "NotFound"
