"""Hugging Face: a branch or tag becomes a commit, its files come with the hub's own digests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from huggingface_hub import HfApi, get_hf_file_metadata, hf_hub_url
from huggingface_hub import errors as hub_errors
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import ModelInfo, RepoSibling

from tasks.plan.types import ModelFile, Source
from tasks.prefetch.refusals import retry_after_s
from tasks.sources.errors import SourceError
from tasks.sources.selection import select

TIMEOUT_S = 30.0
# Whichever HTTP client the library uses, this is its base error.
HTTPError: type[Exception] = hub_errors.HTTPError  # type: ignore[attr-defined]


def files_of(source: Source, credentials: Mapping[str, str] | None) -> tuple[str, list[ModelFile]]:
    """(commit, the files of that commit); SourceError when that cannot be told."""
    model = model_id(source)
    token = (credentials or {}).get("HF_TOKEN") or os.environ.get("HF_TOKEN", "")
    endpoint = source.endpoint_url or os.environ.get("HF_ENDPOINT", "")
    # False, not None: None would pick up whatever token this machine once logged in with.
    api = HfApi(endpoint=endpoint or None, token=token or False)
    with _translated(source, model, has_token=bool(token)):
        info = api.model_info(model, revision=source.revision or None, files_metadata=True, timeout=TIMEOUT_S)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        wanted = [siblings[path] for path in select(source, siblings)]
        if info.gated:
            _check_access(api, info, wanted[0])
    commit = info.sha or ""
    return commit, [_pin(source, commit, sibling) for sibling in wanted]


def model_id(source: Source) -> str:
    model = source.uri.removeprefix("hf://")
    if not source.uri.startswith("hf://") or not model.strip("/"):
        raise SourceError("NotFound", f"{source.uri!r} names no model.", "Give one as hf://org/model.")
    return model.strip("/")


def _check_access(api: HfApi, info: ModelInfo, sibling: RepoSibling) -> None:
    """A gated repository tells its metadata to everybody; only its files show whether we were let in."""
    url = hf_hub_url(info.id, sibling.rfilename, revision=info.sha, endpoint=api.endpoint)
    get_hf_file_metadata(url, token=api.token, timeout=TIMEOUT_S, endpoint=api.endpoint)


def _pin(source: Source, commit: str, sibling: RepoSibling) -> ModelFile:
    size_bytes = sibling.lfs.size if sibling.lfs else sibling.size
    if size_bytes is None or not commit:
        raise SourceError(
            "UnsupportedFormat",
            f"The hub tells no {'size of ' + sibling.rfilename if commit else 'commit'} for {source.uri}.",
            "Use a hub that answers model info with ?blobs=true.",
        )
    return ModelFile(
        path=sibling.rfilename,
        size_bytes=size_bytes,
        digest=f"sha256:{sibling.lfs.sha256}" if sibling.lfs else "",
        pin=f"commit:{commit};oid:{sibling.blob_id}",
    )


@contextmanager
def _translated(source: Source, model: str, *, has_token: bool) -> Iterator[None]:
    """The library's errors as ours; a GatedRepoError is also a RepositoryNotFoundError, so the order matters."""
    hub = source.endpoint_url or "the hub"
    try:
        yield
    except GatedRepoError as error:
        raise SourceError(
            "GatedRepo", f"{model} is gated at {hub}, and {_who(has_token)} is not let in.", _ACCESS
        ) from error
    except RevisionNotFoundError as error:
        raise SourceError(
            "RevisionNotFound",
            f"{model} has no revision {source.revision!r} at {hub}.",
            "Give a branch, tag or commit that exists; nothing means main.",
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            "NotFound",
            f"{hub} shows no model {model} to {_who(has_token)}.",
            "Check the name; a private model needs a token that may read it.",
        ) from error
    except HFValidationError as error:
        raise SourceError("NotFound", f"{model!r} is no name of a model.", "Give one as hf://org/model.") from error
    except OfflineModeIsEnabled as error:
        raise SourceError("Network", "HF_HUB_OFFLINE forbids to ask the hub.", "Unset it for this process.") from error
    except HfHubHTTPError as error:
        raise _refusal(error, f"{model} at {hub}", has_token=has_token) from error
    except (HTTPError, OSError) as error:
        raise SourceError(
            "Network", f"{hub} did not answer ({type(error).__name__}).", "Check HF_ENDPOINT and the network."
        ) from error


_ACCESS = "Accept the model's terms with the account of the token, and give that token as HF_TOKEN in the Secret."


def _who(has_token: bool) -> str:
    return "our token" if has_token else "a request without token"


def _refusal(error: HfHubHTTPError, where: str, *, has_token: bool) -> SourceError:
    status = error.response.status_code
    if status == 429:
        return SourceError("RateLimited", f"The hub asks for fewer requests ({where}).", _SLOWER, _retry_after_s(error))
    if isinstance(error, DisabledRepoError):
        return SourceError("PermissionDenied", f"The hub has disabled {where}.", "Choose another model or mirror.")
    if status in {401, 403}:
        return SourceError(
            "AuthFailed", f"{where}: {_who(has_token)} is refused (HTTP {status}).", "Renew the HF_TOKEN in the Secret."
        )
    if status >= 500:
        return SourceError("Network", f"{where} fails with HTTP {status}.", "Try again later.", _retry_after_s(error))
    return SourceError("NotFound", f"{where} answers HTTP {status}.", "Check the model's name and the hub's address.")


_SLOWER = "Try again after that time; requests with a token have a higher limit."


def _retry_after_s(error: HfHubHTTPError) -> float | None:
    return retry_after_s({name.lower(): value for name, value in error.response.headers.items()})
