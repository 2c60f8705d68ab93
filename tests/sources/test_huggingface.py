"""Hugging Face sources against the local hub."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tasks.plan.types import Formats, ModelFile, Source, SourceKind
from tasks.sources import SourceError, resolve

pytestmark = pytest.mark.local

Make = Callable[..., Source]
Publish = Callable[..., str]
TOKEN = {"HF_TOKEN": "hf_let_in"}


@pytest.fixture
def publish(hub_directory: Path) -> Publish:
    """Put files into a model's directory, as an upload does: each file replaced at once. Gives its source's uri."""

    def write(model: str, files: dict[str, bytes], *marks: str) -> str:
        (hub_directory / "tokens.json").write_text(json.dumps([TOKEN["HF_TOKEN"]]))
        for path, content in {**files, **dict.fromkeys(marks, b"")}.items():
            file = hub_directory / model / path
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{file.name}.draft")
            draft.write_bytes(content)
            draft.replace(file)
        return f"hf://{model}"

    return write


@pytest.fixture
def ask(hub_url: str) -> Callable[..., Any]:
    def send(path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{hub_url}{path}", data, {"Content-Type": "application/json"})  # noqa: S310
        with urllib.request.urlopen(request) as response:  # noqa: S310
            return json.load(response)

    return send


def refuse(source: Source, credentials: dict[str, str] | None = None) -> SourceError:
    with pytest.raises(SourceError) as refused:
        resolve(source, credentials)
    return refused.value


def by_path(files: tuple[ModelFile, ...]) -> dict[str, ModelFile]:
    return {file.path: file for file in files}


def test_a_branch_becomes_a_commit_and_large_files_come_with_their_sha256(hub_source: Make, publish: Publish) -> None:
    uri = publish("acme/one", {"config.json": b"{}", "model.safetensors": b"weights", "README.md": b"#"})
    manifest = resolve(hub_source(uri, revision="main"))
    files = by_path(manifest.files)
    assert len(manifest.revision) == 40
    assert files["model.safetensors"].digest == f"sha256:{hashlib.sha256(b'weights').hexdigest()}"
    assert files["config.json"].digest == ""
    oid = hashlib.sha1(b"blob 2\0{}").hexdigest()  # noqa: S324
    assert files["config.json"].pin == f"commit:{manifest.revision};oid:{oid}"
    assert resolve(hub_source(uri, revision=manifest.revision)).files == manifest.files


def test_an_old_commit_stays_what_it_was(hub_source: Make, publish: Publish) -> None:
    uri = publish("acme/moves", {"model.safetensors": b"old"})
    old = resolve(hub_source(uri))
    publish("acme/moves", {"model.safetensors": b"new!"})
    assert resolve(hub_source(uri)).revision != old.revision
    assert resolve(hub_source(uri, revision=old.revision)).files == old.files


def test_pickles_stay_at_the_hub_beside_safetensors(hub_source: Make, publish: Publish) -> None:
    """Pain 17."""
    uri = publish("acme/both", {"model.safetensors": b"w", "pytorch_model.bin": b"w", "model.gguf": b"w"})
    for formats in Formats:
        paths = [file.path for file in resolve(hub_source(uri, formats=formats)).files]
        assert paths == ["model.gguf", "model.safetensors"]


def test_patterns_of_the_source_choose_files(hub_source: Make, publish: Publish) -> None:
    uri = publish("acme/patterns", {"q4.gguf": b"4", "q8.gguf": b"8", "config.json": b"{}"})
    chosen = resolve(hub_source(uri, include=("*.gguf",), exclude=("q8*",))).files
    assert [file.path for file in chosen] == ["q4.gguf"]


def test_missing_gated_revision_and_token_are_told_apart(hub_source: Make, publish: Publish) -> None:
    """Pain 14: every failure was reported as a gated repository."""
    gated = publish("acme/gated", {"model.safetensors": b"w"}, ".gated")
    private = publish("acme/private", {"model.safetensors": b"w"}, ".private")
    plain = publish("acme/plain", {"model.safetensors": b"w"})
    stranger = {"HF_TOKEN": "hf_stranger"}
    assert refuse(hub_source("hf://acme/nothing")).reason == "NotFound"
    assert refuse(hub_source("hf://acme/nothing"), TOKEN).reason == "NotFound"
    assert refuse(hub_source(gated)).reason == "GatedRepo"
    assert refuse(hub_source(gated), stranger).reason == "GatedRepo"
    assert refuse(hub_source(private), stranger).reason == "NotFound"
    assert refuse(hub_source(plain, revision="v9")).reason == "RevisionNotFound"
    assert refuse(hub_source(plain), {"HF_TOKEN": "expired"}).reason == "AuthFailed"
    assert resolve(hub_source(gated), TOKEN).files == resolve(hub_source(gated), TOKEN).files
    assert resolve(hub_source(private), TOKEN).files


def test_a_token_of_the_environment_serves_and_one_given_goes_before_it(
    hub_source: Make, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hub_source(publish("acme/gated-env", {"model.safetensors": b"w"}, ".gated"))
    monkeypatch.setenv("HF_TOKEN", TOKEN["HF_TOKEN"])
    assert resolve(source).files
    assert refuse(source, {"HF_TOKEN": "hf_stranger"}).reason == "GatedRepo"


def test_no_token_shows_in_what_is_raised(hub_source: Make, publish: Publish) -> None:
    source = hub_source(publish("acme/gated-secret", {"model.safetensors": b"w"}, ".gated"))
    refused = refuse(source, {"HF_TOKEN": "hf_planted"})
    chain: BaseException | None = refused
    while chain is not None:
        assert "hf_planted" not in f"{chain!r} {chain}"
        chain = chain.__cause__


@pytest.mark.parametrize("headers", [{"retry_after": "1"}, {"rate_limit": '"api";r=0;t=1'}])
def test_a_throttled_question_is_asked_again_after_the_time_the_hub_names(
    hub_source: Make,
    publish: Publish,
    ask: Callable[..., Any],
    headers: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pains 11 and 12: the hub says it in a RateLimit header, not in Retry-After."""
    source = hub_source(publish("acme/busy", {"model.safetensors": b"w"}))
    waits: list[float] = []
    monkeypatch.setattr("tenacity.nap.time.sleep", waits.append)
    ask("/_faults", [{"path": "/api/", "status": 429, "times": 2, **headers}])
    assert resolve(source).files
    assert len(ask("/_requests")) == 3
    assert len(waits) == 2
    assert all(1.0 <= wait_s <= 3.0 for wait_s in waits)


def test_a_hub_that_wants_a_long_pause_is_not_waited_for(
    hub_source: Make, publish: Publish, ask: Callable[..., Any]
) -> None:
    source = hub_source(publish("acme/very-busy", {"model.safetensors": b"w"}))
    ask("/_faults", [{"path": "/api/", "status": 429, "times": 9, "rate_limit": '"api";r=0;t=290'}])
    refused = refuse(source)
    ask("/_faults", [])
    assert (refused.reason, refused.retry_after_s) == ("RateLimited", 290.0)


def test_a_failing_hub_and_an_absent_one_are_network_failures(
    hub_source: Make, publish: Publish, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.sources.ATTEMPTS", 1)
    source = hub_source(publish("acme/down", {"model.safetensors": b"w"}))
    ask("/_faults", [{"path": "/api/", "status": 503}])
    assert refuse(source).reason == "Network"
    gone = Source(SourceKind.HUGGINGFACE, "hf://acme/down", endpoint_url="http://127.0.0.1:1")
    assert refuse(gone).reason == "Network"


def test_a_hub_named_by_the_environment_is_asked(
    hub_url: str, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pain 18: an air-gapped hub behind HF_ENDPOINT."""
    monkeypatch.setenv("HF_ENDPOINT", hub_url)
    assert resolve(Source(SourceKind.HUGGINGFACE, publish("acme/env", {"m.gguf": b"w"}))).files
    assert os.environ["HF_ENDPOINT"] == hub_url


@pytest.mark.parametrize("uri", ["hf://", "hf:///", "acme/model", "hf://a b/c", "hf://a/b/c"])
def test_what_is_no_name_of_a_model_is_refused(uri: str) -> None:
    assert refuse(Source(SourceKind.HUGGINGFACE, uri, endpoint_url="http://127.0.0.1:1")).reason == "NotFound"
