"""Requests and answers of an OpenAI-compatible engine, as far as a simulated one needs them. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from infra.local.engines.blocks import tokens_of


@dataclass(frozen=True, slots=True)
class Prompt:
    tokens: list[str]
    max_tokens: int
    is_chat: bool
    is_streamed: bool
    with_usage: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """One completion under way: what all its bodies share."""

    id: str
    model: str
    created_s: int
    is_chat: bool

    def whole(self, text: str, usage: dict[str, Any]) -> dict[str, Any]:
        """The body of an answer that is not streamed."""
        content = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, "finish_reason": "length", **content}
        return self._body("chat.completion" if self.is_chat else "text_completion", [choice]) | {"usage": usage}

    def chunk(self, text: str, *, finish_reason: str | None = None) -> dict[str, Any]:
        """One event of a stream that carries text, or ends it."""
        content = {"delta": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return self._event([{"index": 0, "finish_reason": finish_reason, **content}])

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last event, for those who asked for usage."""
        return self._event([]) | {"usage": usage}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._body("chat.completion.chunk" if self.is_chat else "text_completion", choices)

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


def read_prompt(body: dict[str, Any], *, is_chat: bool) -> Prompt:
    """What an OpenAI request asks for; ValueError, TypeError or KeyError when it is none."""
    text = render_chat(body["messages"]) if is_chat else _text_of(body["prompt"])
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or 16
    return Prompt(
        tokens=tokens_of(text),
        max_tokens=int(asked),
        is_chat=is_chat,
        is_streamed=bool(body.get("stream")),
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def render_chat(messages: list[dict[str, Any]]) -> str:
    return "".join(f"<|{message['role']}|>{_text_of(message.get('content') or '')}</s>" for message in messages)


def _text_of(content: str | list[Any]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part if isinstance(part, str) else str(part.get("text", "")) for part in content)


def usage_of(prompt: Prompt, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": len(prompt.tokens),
        "completion_tokens": prompt.max_tokens,
        "total_tokens": len(prompt.tokens) + prompt.max_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def event(body: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"
