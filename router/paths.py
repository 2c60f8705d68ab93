"""PURE: which paths are served, in whose manner, and what an engine is asked instead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from router.http import Refused


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


NOT_FORWARDED = Route(Api.OPENAI, b"")

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


@dataclass(frozen=True, slots=True)
class Target:
    """What a request line asks for. query: with its "?", or nothing."""

    method: bytes
    path: bytes
    query: bytes
    route: Route


@lru_cache(maxsize=1024)
def read_request_line(line: bytes) -> Target:
    """The target of a request line, in origin or absolute form. Raises Refused. Few lines make up all the traffic."""
    words = line.split(b" ")
    if len(words) != 3:
        raise Refused(400, "a request line is a method, a target and a version, with single spaces")
    method, target = words[:2]
    if not target.startswith(b"/"):
        authority_and_path = target.partition(b"://")[2]
        target = b"/" + authority_and_path.partition(b"/")[2]
    path, mark, query = target.partition(b"?")
    return Target(method, path, mark + query, find_route(path))


def find_route(path: bytes) -> Route:
    """The forwarding rule for a path without its query; NOT_FORWARDED when there is none."""
    route = FORWARDED.get(path)
    if route is None and path.startswith(b"/endpoints/"):
        name, _, rest = path.removeprefix(b"/endpoints/").partition(b"/")
        below = BELOW_ENDPOINT.get(rest)
        if name and below:
            return Route(*below, endpoint=unquote_to_bytes(name).decode("utf-8", "replace"))
    return route or NOT_FORWARDED
