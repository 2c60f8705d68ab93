"""Answers the router gives itself: small bodies, and errors in the shape each API's clients expect."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from router.http import REASONS
from router.paths import Api

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
