"""Answers the router gives itself: small bodies, and errors in the shape each API's clients expect."""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from router.http import REASONS
from router.paths import Api, Target

JSON = b"application/json"
RETRY_AFTER_S = 1

OPENAI_TYPES = {400: "invalid_request_error", 404: "not_found_error", 405: "invalid_request_error"}
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
SAGEMAKER_TYPES = {502: "InternalDependencyException", 503: "ServiceUnavailable", 504: "InternalDependencyException"}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request gets no engine's answer. code: stable word for metrics and clients; message: for its sender."""

    status: int
    code: str
    message: str


CLIENT_GONE = 499  # as nginx logs it; never sent

FAILURES = {
    "no_instance": Failure(503, "no_instance", "No instance of this endpoint can serve now. Try again in a moment."),
    "connect": Failure(503, "unreachable", "No instance of this endpoint could be reached. Try again in a moment."),
    "stale": Failure(502, "upstream_reset", "The instance closed the connection before it answered."),
    "reset": Failure(502, "upstream_reset", "The instance closed the connection before it answered."),
    "bad_response": Failure(502, "bad_response", "The instance answered with something that is not valid HTTP."),
    "first_byte_timeout": Failure(504, "first_byte_timeout", "The instance did not begin to answer in time."),
}


def not_placed(name: str) -> Failure:
    """Why no endpoint takes a request that names `name`."""
    if name:
        return Failure(404, "model_not_found", f"There is no endpoint or model named {name!r} here.")
    return Failure(400, "model_missing", 'The body is no JSON object with a "model"; /v1/models lists what is served.')


@dataclass(frozen=True, slots=True)
class Reply:
    """A body the router made. fields: further header lines, each with its CRLF."""

    status: int
    body: bytes
    content_type: bytes = JSON
    fields: bytes = b""

    def encode(self, *, close: bool = False, head_only: bool = False) -> bytes:
        return b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n%b%b\r\n%b" % (
            self.status,
            REASONS[self.status],
            self.content_type,
            len(self.body),
            self.fields,
            b"connection: close\r\n" if close else b"",
            b"" if head_only else self.body,
        )


def json_reply(status: int, document: object, fields: bytes = b"") -> Reply:
    return Reply(status, orjson.dumps(document), fields=fields)


def error_reply(api: Api, failure: Failure) -> Reply:
    """`failure` as `api`'s own clients know errors."""
    status = failure.status
    fields = b"retry-after: %d\r\n" % RETRY_AFTER_S if status == 503 else b""
    if api is Api.ANTHROPIC:
        kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return json_reply(status, {"type": "error", "error": {"type": kind, "message": failure.message}}, fields)
    if api is Api.SAGEMAKER:
        kind = SAGEMAKER_TYPES.get(status, "ValidationError" if status < 500 else "InternalFailure")
        return json_reply(status, {"Message": failure.message}, fields + b"x-amzn-errortype: %b\r\n" % kind.encode())
    kind = OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": failure.message, "type": kind, "param": None, "code": failure.code}
    return json_reply(status, {"error": error}, fields)


def refusal(api: Api, status: int, message: str, fields: bytes = b"") -> Reply:
    """An error that HTTP has a number for; `fields` are added."""
    reply = error_reply(api, Failure(status, f"http_{status}", message))
    return replace(reply, fields=reply.fields + fields)


def own_reply(target: Target, reply: Reply | None, *, is_forwarded: bool) -> Reply:
    """`reply`, the router's own on this path, or what is wrong with the request."""
    api, path = target.route.api, target.path.decode("latin-1")
    if is_forwarded:
        return refusal(api, 405, f"{path} takes POST", b"allow: POST\r\n")
    if reply is None:
        return refusal(api, 404, f"there is nothing at {path}")
    if target.method not in (b"GET", b"HEAD"):
        return refusal(api, 405, f"{path} takes GET", b"allow: GET, HEAD\r\n")
    return reply
