"""Recorded traffic: the Mooncake trace format, and logs of OpenAI-style requests. One JSON object per line.

Mooncake: `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (one per block of 512 tokens; an id stands for
everything up to it). OpenAI-style: `timestamp` (s, or RFC 3339), `request` (a chat or completions body) and, where
known, `response.usage`; token counts are taken from the usage, else guessed at four bytes per token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from xxhash import xxh3_64_intdigest

from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.workloads import ANCHOR_BLOCKS, mix

# A first block that this many requests begin with is a system prompt: it does not make them one session.
_COMMON = 20
_BYTES_PER_TOKEN = 4
_DEFAULT_OUTPUT_TOKENS = 256


class BadTrace(ValueError):
    """A line of a trace that cannot be replayed: names the file, the line and what is wrong."""


def read_trace(path: Path, *, speed: float = 1.0, limit: int | None = None) -> list[Request]:
    """Requests of a trace in order, `speed` times as fast as recorded. The format is seen from the first line."""
    if speed <= 0:
        raise ValueError(f"speed is {speed}; expected a number above 0")
    rows = list(_rows(path, limit))
    if not rows:
        raise BadTrace(f"{path} holds no requests; expected one JSON object per line")
    kind = _read_mooncake if "hash_ids" in rows[0][1] else _read_openai
    requests = sorted(kind(path, rows), key=lambda request: request.at)
    start = requests[0].at
    for request in requests:
        request.at = (request.at - start) / speed
    return requests


def _rows(path: Path, limit: int | None) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and number > limit:
                return
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadTrace(f"{path} line {number} is not JSON: {error}") from error
            if not isinstance(row, dict):
                raise BadTrace(f"{path} line {number} is {type(row).__name__}; expected an object")
            yield number, row


def _read_mooncake(path: Path, rows: list[tuple[int, dict[str, Any]]]) -> list[Request]:
    try:
        beginnings = Counter(row["hash_ids"][0] for _, row in rows if row["hash_ids"])
        sessions = _Sessions({block for block, seen in beginnings.items() if seen > _COMMON})
        return [_mooncake_request(sessions, number, row) for number, row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise BadTrace(
            f"{path} has a line without a usable {error}; every line of a Mooncake trace has "
            "timestamp, input_length, output_length and hash_ids"
        ) from error


def _mooncake_request(sessions: _Sessions, number: int, row: Mapping[str, Any]) -> Request:
    tokens, blocks = int(row["input_length"]), tuple(int(block) for block in row["hash_ids"])
    output = max(1, int(row["output_length"]))
    return sessions.place(number, float(row["timestamp"]) / 1000, tokens, output, blocks)


def _read_openai(path: Path, rows: list[tuple[int, dict[str, Any]]]) -> list[Request]:
    parsed = []
    for number, row in rows:
        try:
            parsed.append((number, *_openai_row(row)))
        except (KeyError, TypeError, ValueError) as error:
            raise BadTrace(
                f"{path} line {number}: {error}; expected timestamp, request (with messages or prompt) and "
                "optionally response.usage"
            ) from error
    beginnings = Counter(blocks[0] for *_, blocks in parsed if blocks)
    sessions = _Sessions({block for block, seen in beginnings.items() if seen > _COMMON})
    return [sessions.place(*row) for row in parsed]


def _openai_row(row: Mapping[str, Any]) -> tuple[float, int, int, tuple[int, ...]]:
    text = _prompt_text(row["request"])
    usage = (row.get("response") or {}).get("usage") or row.get("usage") or {}
    tokens = int(usage.get("prompt_tokens") or max(1, len(text) // _BYTES_PER_TOKEN))
    output = int(usage.get("completion_tokens") or row["request"].get("max_tokens") or _DEFAULT_OUTPUT_TOKENS)
    return _seconds(row["timestamp"]), tokens, max(1, output), _text_blocks(text, -(-tokens // BLOCK_TOKENS))


def _seconds(timestamp: float | str) -> float:
    if isinstance(timestamp, str):
        return datetime.fromisoformat(timestamp).timestamp()
    return float(timestamp)


def _prompt_text(body: Mapping[str, Any]) -> bytes:
    """What decides the engine's cache: model, tools, and the conversation in order."""
    said: Any = body["messages"] if "messages" in body else body["prompt"]
    kept = [body.get("model"), body.get("tools"), said]
    return "\n".join(json.dumps(part, sort_keys=True, ensure_ascii=False) for part in kept).encode()


def _text_blocks(text: bytes, count: int) -> tuple[int, ...]:
    """Cut the text into as many equal blocks as it has blocks of tokens, chained."""
    size, parent, blocks = max(1, BLOCK_TOKENS * _BYTES_PER_TOKEN), 0, []
    for at in range(count):
        parent = mix(parent ^ _hash(text[at * size : (at + 1) * size]))
        blocks.append(parent)
    return tuple(blocks)


def _hash(data: bytes) -> int:
    """A 64-bit number for some bytes, the same in every process."""
    return xxh3_64_intdigest(data)


class _Sessions:
    """Rebuilds conversations: a request continues the latest one whose full blocks are a prefix of its own."""

    def __init__(self, common: Iterable[int]) -> None:
        self._common = frozenset(common)
        self._by_last_block: dict[int, tuple[int, int, int]] = {}  # -> session, anchor, turn

    def place(self, number: int, at: float, tokens: int, output: int, blocks: tuple[int, ...]) -> Request:
        """The request, with its session, turn and anchor."""
        full = tokens // BLOCK_TOKENS
        found = self._earlier(blocks, full)
        if found is None:
            session = mix(number * 7919 + 13)
            anchor = blocks[ANCHOR_BLOCKS - 1] if full >= ANCHOR_BLOCKS <= len(blocks) else session
            session, anchor, turn = session, anchor, 0
        else:
            session, anchor, turn = found[0], found[1], found[2] + 1
        if full and len(blocks) >= full and not (full == 1 and blocks[0] in self._common):
            self._by_last_block[blocks[full - 1]] = (session, anchor, turn)
        return Request(at, tokens, output, blocks, anchor, session, turn)

    def _earlier(self, blocks: tuple[int, ...], full: int) -> tuple[int, int, int] | None:
        for depth in range(min(full, len(blocks)) - 1, -1, -1):
            found = self._by_last_block.get(blocks[depth])
            if found is not None and not (depth == 0 and blocks[0] in self._common):
                return found
        return None
