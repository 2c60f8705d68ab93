"""From a request to its chain: what the engine's cache depends on, in the order in which the engine sees it.

Tools come first, as chat templates put them, then the canonical prompt. Model, adapter and cache salt are the scope.
Hints of the caller move the home but never part prompts, for engines do not know them.
"""

from __future__ import annotations

import sys

import orjson

from router.kv.blocks import ANCHOR_BYTES, Chain, chain_blocks
from router.request import PROMPT_FIELDS, Document, canonical_prompt, model_of

_SCOPE_FIELDS = ("cache_salt", "lora_path", "adapter_id")
_ANSWERS = frozenset({"assistant", "tool", "model"})


def chain_of(document: Document | None, body: bytes, *, key: int, hint: str = "") -> Chain:
    """The chain of a parsed request; of a body that holds no prompt, the chain of its bytes."""
    text = canonical_prompt(document, sys.maxsize) if document else ""
    if document is None or not text:
        return chain_blocks(body, key=key, scope=b"", anchor_bytes=ANCHOR_BYTES, hint=hint.encode())
    tools = orjson.dumps(document["tools"], option=orjson.OPT_SORT_KEYS) if document.get("tools") else b""
    scope = "\0".join([model_of(document), *(f"{field}={document.get(field, '')}" for field in _SCOPE_FIELDS)])
    hints = f"{hint}\0{document['prompt_cache_key']}" if "prompt_cache_key" in document else hint
    turns, follow_up = _first_turns(document)
    return chain_blocks(
        tools + _encode(text),
        key=key,
        scope=_encode(scope),
        anchor_bytes=len(tools) + _anchor_bytes(document, turns),
        hint=_encode(hints),
        follow_up=follow_up,
    )


def _first_turns(document: Document) -> tuple[int, bool]:
    """How many messages there are up to the first user's, and whether there is an answer among all."""
    messages: list[object] = next(
        (document[field] for field in PROMPT_FIELDS if isinstance(document.get(field), list)), []
    )
    roles = [item.get("role") if isinstance(item, dict) else None for item in messages]
    turns = roles.index("user") + 1 if "user" in roles else len(roles)
    return turns, "previous_response_id" in document or not _ANSWERS.isdisjoint(roles)


def _anchor_bytes(document: Document, turns: int) -> int:
    """Everything before the first user message, and so much of it as decides the home."""
    first = _cut(document, turns)
    if len(first) <= ANCHOR_BYTES:
        return len(first)
    return min(len(first), len(_cut(document, turns - 1)) + ANCHOR_BYTES)


def _cut(document: Document, turns: int) -> bytes:
    cut = {
        name: value[: max(0, turns)] if name in PROMPT_FIELDS and isinstance(value, list) else value
        for name, value in document.items()
    }
    return _encode(canonical_prompt(cut, sys.maxsize))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
