"""What a source's refusal means: a missing file must never read as gated, nor a throttle as a failure."""

from __future__ import annotations

import re

from tasks.prefetch.errors import Hiccup, PrefetchError
from tasks.prefetch.http import Headers, Response

CODE = re.compile(r"<Code>([^<]{1,64})</Code>")
# `RateLimit: "resolvers";r=0;t=55`: nothing remains, reset in 55 s.
USED_UP = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")
LONGEST_WAIT_S = 600.0
THROTTLES = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"})
BAD_CREDENTIALS = frozenset({"ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"})


def s3_refusal(where: str, response: Response) -> PrefetchError:
    code = _code(response)
    if common := _common(where, response, throttled=code in THROTTLES):
        return common
    told = f"{where}: HTTP {response.status} {code}".rstrip()
    if response.status in {401, 403} or code in BAD_CREDENTIALS:
        return PrefetchError("AuthFailed", f"{told}; the credentials need s3:GetObject and s3:GetObjectVersion there.")
    if response.status in {301, 307, 400}:
        region = response.headers.get("x-amz-bucket-region", "")
        advice = f"the bucket is in {region}" if region else "check the region and the addressing style"
        return PrefetchError("NotFound", f"{told}; {advice}.")
    return PrefetchError(
        "NotFound", f"{told}; it was there when the revision was pinned: put it back or roll out again."
    )


def hub_refusal(where: str, response: Response, *, has_token: bool) -> PrefetchError:
    if common := _common(where, response, throttled=False):
        return common
    code = response.headers.get("x-error-code", "")
    told = f"{where}: HTTP {response.status} {code}".rstrip()
    who = "the HF_TOKEN" if has_token else "a request without HF_TOKEN"
    if code == "GatedRepo":
        return PrefetchError("GatedRepo", f"{told}; the model is gated and {who} is not let in: accept its terms.")
    if code == "RevisionNotFound":
        return PrefetchError("RevisionNotFound", f"{told}; that commit is gone: roll out again.")
    if response.status in {401, 403} and code not in {"RepoNotFound", "EntryNotFound"}:
        return PrefetchError("AuthFailed", f"{told}; {who} is refused: renew it.")
    return PrefetchError("NotFound", f"{told}; it is gone, or {who} may not see it.")


def _common(where: str, response: Response, *, throttled: bool) -> PrefetchError | None:
    status = response.status
    if status == 412 or status == 416:
        return PrefetchError("SourceChanged", f"{where} was replaced since it was pinned; roll out again.")
    if status == 429 or throttled:
        return _wait(Hiccup("RateLimited", f"{where} asks for fewer requests", retry_after_s(response.headers)))
    if status >= 500 or status == 408:
        return _wait(Hiccup("Network", f"{where} fails with HTTP {status}", retry_after_s(response.headers)))
    return None


def _wait(hiccup: Hiccup) -> PrefetchError:
    if (hiccup.retry_after_s or 0) <= LONGEST_WAIT_S:
        return hiccup
    return PrefetchError(hiccup.reason, f"{hiccup.message}, for {hiccup.retry_after_s:.0f} s; try again after that.")


def retry_after_s(headers: Headers) -> float | None:
    """How long to wait: the hub says it in a RateLimit header, others in Retry-After as seconds or as a date."""
    if used_up := USED_UP.search(headers.get("ratelimit", "")):
        return float(used_up[1])
    told = headers.get("retry-after", "")
    if not told:
        return None
    if told.isdigit():
        return float(told)
    from datetime import UTC, datetime
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, (parsedate_to_datetime(told) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


def _code(response: Response) -> str:
    try:
        found = CODE.search(response.text())
    except Hiccup:
        return ""  # the refusal itself counts, whatever became of its text
    return found[1] if found else ""
