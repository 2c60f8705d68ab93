"""PURE: what a request says about where it should go: its model, and the key of its prefix.

The key is a hash of model, hints, tools, adapter and cache salt, and of the first `prefix_length` characters of the
canonical prompt: the text of the system prompt and the messages in their order, each followed by its role. Key order,
white space, sampling parameters and ids never change it; images and audio count by their digest. A body that is not a
JSON object with a prompt counts by its first bytes. Nothing of the prompt outlives the call.
"""

from __future__ import annotations

from typing import Any

import jiter
import orjson
from xxhash import xxh3_64_digest, xxh3_64_hexdigest, xxh3_64_intdigest

Document = dict[str, Any]

END_OF_TEXT = "\x1f"
END_OF_MESSAGE = "\x1e"

# Fields that stand before the messages, and those that hold them, for every API served.
SYSTEM_FIELDS = ("system", "instructions")
PROMPT_FIELDS = ("messages", "input", "prompt", "inputs")
# Fields that part prompts from each other however alike they begin: what engines key their caches with, and hints.
SCOPE_FIELDS = ("tools", "prompt_cache_key", "cache_salt", "lora_path", "adapter_id")
# Never part of what an engine computes on.
IGNORED_FIELDS = frozenset({"id", "call_id", "tool_call_id", "tool_use_id", "cache_control", "status"})


def read_document(body: bytes, *, cut: bool = False) -> Document | None:
    """The JSON object in `body`, None when it is none. `cut`: the body goes on after these bytes."""
    try:
        document = jiter.from_json(body, cache_mode="none", partial_mode="trailing-strings" if cut else "off")
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    if cut:
        _forget_unfinished(document)
    return document


def _forget_unfinished(document: Document) -> None:
    """The last item of a cut body may lack anything; of it only its text is a true beginning."""
    items = document[next(reversed(document))] if document else None
    if not isinstance(items, list) or not items:
        return
    last = items.pop()
    content = last.get("content") if isinstance(last, dict) else last
    if isinstance(content, list):
        is_text = bool(content) and isinstance(content[-1], dict) and isinstance(content[-1].get("text"), str)
        content = _content(content if is_text else content[:-1])
    if isinstance(content, str):
        items.append(content)


def model_of(document: Document | None) -> str:
    model = document.get("model") if document else None
    return model if isinstance(model, str) else ""


def prefix_key(document: Document | None, body: bytes, *, prefix_length: int, hint: str = "", seed: int = 0) -> bytes:
    """The routing key of a request. `hint`: the caller's own, beside `prompt_cache_key` of the body."""
    text = canonical_prompt(document, prefix_length) if document else ""
    if document is None or not (text or _has_prompt(document)):
        return xxh3_64_digest(hint.encode() + b"\0" + body[:prefix_length], seed)
    scope = f"{model_of(document)}\0{hint}"
    for field in SCOPE_FIELDS:
        if field in document:
            scope += f"\0{field}={_digest(document[field])}"
    return xxh3_64_digest(_bytes(text), xxh3_64_intdigest(_bytes(scope), seed))


def _bytes(text: str) -> bytes:
    """The fastest encoding for what `text` holds."""
    return text.encode() if text.isascii() else text.encode("utf-16-le", "surrogatepass")


def _has_prompt(document: Document) -> bool:
    return any(isinstance(document.get(field), str | list) for field in (*SYSTEM_FIELDS, *PROMPT_FIELDS))


def canonical_prompt(document: Document, limit: int) -> str:
    """The first `limit` characters of the prompt, "" when there is none."""
    parts: list[str] = []
    for field in SYSTEM_FIELDS:
        if field in document:
            parts += (_content(document[field]), END_OF_TEXT, "system", END_OF_MESSAGE)
    room = limit - sum(map(len, parts)) if parts else limit
    for field in PROMPT_FIELDS:
        if field not in document:
            continue
        value = document[field]
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, list):
            if value and isinstance(value[0], int):
                value = [_canonical(value[:limit])]  # a prompt given as tokens
            for item in value:
                if room <= 0:
                    break
                text = _message(item, room)
                room -= len(text)
                parts.append(text)
    return "".join(parts)[:limit]


def _message(item: object, room: int) -> str:
    """Text first, role last: a prompt cut within a text is then a true beginning of the whole."""
    if isinstance(item, dict) and "content" in item:
        content = item["content"]
        text = content if isinstance(content, str) else _content(content)
        if len(text) >= room:
            return text[:room]
        if "tool_calls" in item:
            text += _canonical(item["tool_calls"])
        role = item.get("role")
        return f"{text}{END_OF_TEXT}{role if isinstance(role, str) else ''}{END_OF_MESSAGE}"
    return (item if isinstance(item, str) else _canonical(item)) + END_OF_MESSAGE


def _content(content: object) -> str:
    """Text as it is; anything else, such as an image, by its digest."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else _digest(content)
    return "".join(
        part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else _digest(part)
        for part in content
    )


def _digest(value: object) -> str:
    return xxh3_64_hexdigest(_canonical(value).encode())


def _canonical(value: object) -> str:
    """JSON with sorted keys and without ids."""
    try:
        return orjson.dumps(_without_ids(value), option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:
        return ""  # a number beyond 64 bits: nothing an engine would take


def _without_ids(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_ids(item) for name, item in value.items() if name not in IGNORED_FIELDS}
    if isinstance(value, list):
        return [_without_ids(item) for item in value]
    return value
