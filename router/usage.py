"""PURE: how much of a prompt an engine took from its prefix cache, read off the end of its answer."""

from __future__ import annotations

import re
from typing import NamedTuple

TAIL_BYTES = 2048

# Inside a JSON string the quotes would be escaped, so text that a model wrote never matches.
CACHED = re.compile(rb'"cached_tokens"\s*:\s*(\d{1,12})')
PROMPT = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,12})')


class Usage(NamedTuple):
    prompt_tokens: int
    cached_tokens: int


def read_usage(tail: bytes) -> Usage | None:
    """What the last bytes of an answer, JSON or server-sent events, say; None when they do not."""
    tail = tail[-TAIL_BYTES:]
    if b'"cached_tokens"' not in tail:
        return None
    cached, prompt = CACHED.findall(tail), PROMPT.findall(tail)
    return Usage(int(prompt[-1]), int(cached[-1])) if cached and prompt else None
