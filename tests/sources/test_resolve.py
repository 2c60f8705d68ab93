from __future__ import annotations

import base64
import inspect
import pickle
from typing import Any

import pytest
from prefect.cache_policies import NO_CACHE

import tasks.sources
from tasks.kube import NotFound
from tasks.plan.types import ModelFile, Source, SourceKind
from tasks.sources import SourceError, read_credentials, resolve, resolve_source

SOURCE = Source(SourceKind.S3, "s3://bucket/m/")


class Secrets:
    """A cluster that holds one Secret."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        if (kind, name, namespace) != ("Secret", "keys", "models"):
            raise NotFound(f"{kind} {namespace}/{name}")
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in self.data.items()}}


@pytest.fixture
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.sources.connect", lambda: Secrets({"HF_TOKEN": "hf_planted\n"}))


@pytest.mark.usefixtures("_cluster")
def test_credentials_are_read_from_the_secret_and_trimmed() -> None:
    assert read_credentials("keys", "models") == {"HF_TOKEN": "hf_planted"}


@pytest.mark.usefixtures("_cluster")
def test_a_missing_secret_is_an_auth_failure_that_names_it() -> None:
    with pytest.raises(SourceError, match="Secret default/absent") as refused:
        read_credentials("absent", "default")
    assert refused.value.reason == "AuthFailed"


@pytest.mark.usefixtures("_cluster")
def test_the_task_hands_the_secret_on_without_taking_it_as_a_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("tasks.sources._files_of", lambda _, keys: (seen.append(keys), ("", [FILE]))[1])
    resolve_source.fn(SOURCE, "keys", "models")
    resolve_source.fn(SOURCE)
    assert seen == [{"HF_TOKEN": "hf_planted"}, None]
    names = {"source", "secret_name", "namespace", "token_secret", "token_key", "token_optional"}
    assert set(inspect.signature(resolve_source.fn).parameters) == names


def test_a_gated_models_own_token_is_read_from_the_key_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("tasks.sources.connect", lambda: Secrets({"token": "hf_own"}))
    monkeypatch.setattr("tasks.sources._files_of", lambda _, keys: (seen.append(keys), ("", [FILE]))[1])
    resolve_source.fn(SOURCE, "", "models", token_secret="keys", token_key="token")
    assert seen == [{"HF_TOKEN": "hf_own"}]
    with pytest.raises(SourceError, match="has no key 'absent'"):
        resolve_source.fn(SOURCE, "", "models", token_secret="keys", token_key="absent")
    resolve_source.fn(SOURCE, "", "models", token_secret="keys", token_key="absent", token_optional=True)
    assert seen[1:] == [None]


def test_the_task_is_never_answered_from_a_cache() -> None:
    assert resolve_source.cache_policy == NO_CACHE


FILE = ModelFile("model.gguf", 1, pin="etag:1")


@pytest.mark.parametrize(("reason", "asked"), [("Network", 3), ("SourceChanged", 3), ("NotFound", 1), ("GatedRepo", 1)])
def test_only_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, reason: Any, asked: int) -> None:
    answers: list[Any] = [
        SourceError(reason, "broken.", "Wait."),
        SourceError(reason, "broken.", "Wait."),
        ("", [FILE]),
    ]
    calls: list[Source] = []

    def files_of(source: Source, _: Any) -> Any:
        calls.append(source)
        answer = answers[len(calls) - 1]
        if isinstance(answer, SourceError):
            raise answer
        return answer

    monkeypatch.setattr("tasks.sources._files_of", files_of)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    if asked == 3:
        assert resolve(SOURCE).files == (FILE,)
    else:
        with pytest.raises(SourceError, match=reason):
            resolve(SOURCE)
    assert len(calls) == asked


def test_an_error_survives_the_way_through_a_result_store() -> None:
    error = SourceError("RateLimited", "The hub asks for fewer requests.", "Wait.", 55.0)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (str(copy), copy.reason, copy.retry_after_s, copy.retryable) == (str(error), "RateLimited", 55.0, True)


def test_every_reason_that_is_retryable_is_a_reason() -> None:
    assert set(tasks.sources.errors.RETRYABLE) <= set(tasks.sources.errors.Reason.__args__)  # type: ignore[attr-defined]
