"""PURE: which paths are served, in whose manner, and what an engine is asked instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes


class Api(StrEnum):
    """Whose clients talk on a path: it decides the shape of errors."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    SAGEMAKER = "sagemaker"


@dataclass(frozen=True, slots=True)
class Route:
    """path: what the engine is asked. endpoint: named by the path, "" when the body's model names it."""

    api: Api
    path: bytes
    endpoint: str = ""


OPENAI_PATHS = {
    path: Route(Api.OPENAI, path)
    for path in (b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings", b"/v1/responses")
}
FORWARDED = OPENAI_PATHS | {b"/v1/messages": Route(Api.ANTHROPIC, b"/v1/messages")}

# What follows /endpoints/{name}, and what the engine is asked for it.
BELOW_ENDPOINT = {
    b"invocations": (Api.SAGEMAKER, b"/invocations"),
    b"openai/v1/chat/completions": (Api.OPENAI, b"/v1/chat/completions"),
}


def find_route(path: bytes) -> Route | None:
    """The forwarding rule for a path without its query; None when it is not forwarded."""
    route = FORWARDED.get(path)
    if route is None and path.startswith(b"/endpoints/"):
        name, _, rest = path.removeprefix(b"/endpoints/").partition(b"/")
        below = BELOW_ENDPOINT.get(rest)
        if name and below:
            return Route(*below, endpoint=unquote_to_bytes(name).decode("utf-8", "replace"))
    return route


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """(path, query with its "?" or nothing) of an origin-form or absolute-form request target."""
    if not target.startswith(b"/"):
        authority_and_path = target.partition(b"://")[2]
        target = b"/" + authority_and_path.partition(b"/")[2]
    path, mark, query = target.partition(b"?")
    return path, mark + query
