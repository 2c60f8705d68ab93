"""Sources: what a location holds now, pinned so that a download can never mix two states of it.

SourceError(reason, message, hint)      reasons are fixed, see tasks.sources.errors
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

from prefect import task
from prefect.cache_policies import NO_CACHE
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from tasks.kube import NotFound, connect
from tasks.plan.manifest import InvalidManifest, build_manifest
from tasks.plan.types import Manifest, ModelFile, Source, SourceKind
from tasks.sources import huggingface, mounted, s3
from tasks.sources.errors import SourceError

__all__ = ["SourceError", "resolve", "resolve_source"]

ATTEMPTS = 5
LONGEST_WAIT_S = 120.0

_backoff = wait_random_exponential(multiplier=0.5, max=20)


@task(cache_policy=NO_CACHE, task_run_name="resolve {source.uri}")
def resolve_source(
    source: Source,
    secret_name: str = "",
    namespace: str = "default",
    *,
    token_secret: str = "",
    token_key: str = "",
    token_optional: bool = False,
) -> Manifest:
    """Pin `source`. Credentials come from Secrets, read here: a parameter would be stored with the run.

    token_secret, token_key: the Secret and its key that hold a hub's token, where that has one of its own.
    token_optional: do without the token when it is not there.
    """
    credentials = read_credentials(secret_name, namespace) if secret_name else {}
    if token_secret:
        try:
            credentials["HF_TOKEN"] = read_token(token_secret, token_key, namespace)
        except SourceError:
            if not token_optional:
                raise
    return resolve(source, credentials or None)


def resolve(source: Source, credentials: Mapping[str, str] | None = None) -> Manifest:
    """The manifest of what `source` holds now. Waits as long as a throttling source asks for, within bounds."""
    for attempt in Retrying(
        retry=retry_if_exception(_worth_waiting), wait=_wait_s, stop=stop_after_attempt(ATTEMPTS), reraise=True
    ):
        with attempt:
            return _resolve_once(source, credentials)
    raise AssertionError("Retrying with reraise ends by returning or raising")


def read_token(secret_name: str, key: str, namespace: str) -> str:
    """The hub token that huggingFaceModel.tokenSecretRef names."""
    try:
        return read_credentials(secret_name, namespace)[key]
    except KeyError as error:
        raise SourceError(
            "AuthFailed",
            f"The Secret {namespace}/{secret_name} has no key {key!r}.",
            "Add it, or correct huggingFaceModel.tokenSecretRef.key.",
        ) from error


def read_credentials(secret_name: str, namespace: str) -> dict[str, str]:
    """AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, HF_TOKEN: whatever the Secret holds of them."""
    try:
        secret = connect().get("Secret", secret_name, namespace)
    except NotFound as error:
        raise SourceError(
            "AuthFailed",
            f"The Secret {namespace}/{secret_name} with the source's credentials does not exist.",
            "Create it, or correct its name in credentialsSecretRef (cachePolicy.source) or tokenSecretRef.",
        ) from error
    decoded = {name: base64.b64decode(value).decode().strip() for name, value in (secret.get("data") or {}).items()}
    return {**decoded, **(secret.get("stringData") or {})}


def _resolve_once(source: Source, credentials: Mapping[str, str] | None) -> Manifest:
    revision, files = _files_of(source, credentials)
    try:
        manifest = build_manifest(source, revision, files)
    except InvalidManifest as error:
        raise SourceError("UnsupportedFormat", f"{error}.", "Rename or exclude that file at the source.") from error
    if source.kind is not SourceKind.HUGGINGFACE and source.revision not in {"", manifest.revision}:
        raise SourceError(
            "RevisionNotFound",
            f"{source.uri} holds revision {manifest.revision}, not {source.revision!r} as asked for.",
            "Leave the revision out, or put those files back: this kind of source keeps only the present ones.",
        )
    return manifest


def _files_of(source: Source, credentials: Mapping[str, str] | None) -> tuple[str, list[ModelFile]]:
    """(commit, or "" where a source has none; files)."""
    match source.kind:
        case SourceKind.S3:
            return "", s3.files_of(source, credentials)
        case SourceKind.HUGGINGFACE:
            return huggingface.files_of(source, credentials)
        case SourceKind.FILE:
            return "", mounted.files_of(source)


def _worth_waiting(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.retryable and (error.retry_after_s or 0) <= LONGEST_WAIT_S


def _wait_s(state: RetryCallState) -> float:
    """What the source asked for, never less; jitter keeps many callers from coming back together."""
    error = state.outcome.exception() if state.outcome else None
    asked_s = error.retry_after_s if isinstance(error, SourceError) else None
    return (asked_s or 0.0) + _backoff(state)
