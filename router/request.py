"""PURE: what a request says about where it should go: its model, and the key of its prefix.

The key is a hash of (model, adapter, cache salt, hint, tools) and the first `prefix_length` characters of the canonical
prompt: the text of the system prompt and the messages in their order, each followed by its role. Key order, white
space, sampling parameters and ids never change it; images and audio count by their digest. A body that is not a JSON
object with a prompt counts by its first bytes. Nothing of the prompt outlives the call.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jiter
import orjson
from xxhash import xxh3_64_digest, xxh3_64_hexdigest

Document = dict[str, Any]

END_OF_TEXT = "\x1f"
END_OF_MESSAGE = "\x1e"

# Fields that stand before the messages, and those that hold them, for every API served.
SYSTEM_FIELDS = ("system", "instructions")
PROMPT_FIELDS = ("messages", "input", "prompt", "inputs")
# Fields under which engines know an adapter, beside `model`.
ADAPTER_FIELDS = ("lora_path", "adapter_id", "cache_salt")
# Never part of what an engine computes on.
IGNORED_FIELDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status"})


class Prefix(NamedTuple):
    """What may be known of a request before it is placed."""

    model: str
    key: bytes


def read_document(body: bytes, *, cut: bool = False) -> Document | None:
    """The JSON object in `body`, None when it is none. `cut`: the body goes on after these bytes."""
    try:
        document = jiter.from_json(body, partial_mode="trailing-strings" if cut else "off")
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def model_of(document: Document | None) -> str:
    model = document.get("model") if document else None
    return model if isinstance(model, str) else ""


def prefix_key(document: Document | None, body: bytes, *, prefix_length: int, hint: str = "", seed: int = 0) -> bytes:
    """The routing key of a request. `hint`: the caller's own, beside `prompt_cache_key` of the body."""
    text = canonical_prompt(document, prefix_length) if document else ""
    if document is None or not text:
        return xxh3_64_digest(hint.encode() + b"\0" + body[:prefix_length], seed)
    tools = document.get("tools")
    parts = [
        model_of(document),
        *(str(document.get(field, "")) for field in ADAPTER_FIELDS),
        hint,
        str(document.get("prompt_cache_key", "")),
        _digest(tools) if tools else "",
        text,
    ]
    return xxh3_64_digest("\0".join(parts).encode("utf-8", "surrogatepass"), seed)


def canonical_prompt(document: Document, limit: int) -> str:
    """The first `limit` characters of the prompt, "" when there is none."""
    parts: list[str] = []
    length = 0
    for part in _prompt(document):
        parts.append(part)
        length += len(part)
        if length >= limit:
            break
    return "".join(parts)[:limit]


def _prompt(document: Document) -> Iterator[str]:
    for field in SYSTEM_FIELDS:
        if field in document:
            yield from _content(document[field])
            yield END_OF_TEXT + "system" + END_OF_MESSAGE
    for field in PROMPT_FIELDS:
        value = document.get(field)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            for item in value:
                yield from _message(item)


def _message(item: object) -> Iterator[str]:
    """Text first, role last: a prompt cut within a text is then a true beginning of the whole."""
    if isinstance(item, dict) and "content" in item:
        yield from _content(item["content"])
        calls = item.get("tool_calls")
        if calls:
            yield _canonical(calls)
        yield END_OF_TEXT + str(item.get("role", "")) + END_OF_MESSAGE
    elif isinstance(item, str):
        yield item + END_OF_MESSAGE
    else:
        yield _canonical(item) + END_OF_MESSAGE


def _content(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, str):
                yield part
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]
            else:
                yield _digest(part)


def _digest(value: object) -> str:
    return xxh3_64_hexdigest(_canonical(value).encode())


def _canonical(value: object) -> str:
    """JSON with sorted keys and without ids."""
    return orjson.dumps(_without_ids(value), option=orjson.OPT_SORT_KEYS).decode()


def _without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_ids(item) for name, item in value.items() if name not in IGNORED_FIELDS}
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    return value
