"""Chat traffic with shared beginnings, sent through the router by a plain HTTP client, and what it met.

Each conversation opens with one of a few long system prompts, as assistants and document chats do; only the
question differs. Time to first token is from sending the request to the first event that carries text.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

PREFIX_CHARACTERS = 2000
MAX_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished request. ttft_s: seconds to the first token; cached and prompt tokens as the engine reports."""

    ttft_s: float
    prompt_tokens: int
    cached_tokens: int
    instance: str


@dataclass(slots=True)
class Tally:
    """What a stream of requests met; failures keep their reason, never a prompt."""

    answers: list[Answer] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def requests(self) -> int:
        return len(self.answers) + self.failures.total()

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that the engines took from their prefix caches."""
        prompt_tokens = sum(answer.prompt_tokens for answer in self.answers)
        return sum(answer.cached_tokens for answer in self.answers) / prompt_tokens if prompt_tokens else 0.0

    @property
    def ttft_p50_ms(self) -> float:
        times = sorted(answer.ttft_s for answer in self.answers)
        return 1000 * times[len(times) // 2] if times else 0.0


def conversations(seed: int, count: int) -> list[str]:
    """`count` system prompts of PREFIX_CHARACTERS characters that share nothing with those of another seed."""
    rng = random.Random(seed)  # noqa: S311 - a workload, not a secret
    words = ("route", "cache", "node", "prefix", "model", "token", "weight", "engine", "plan", "gate", "warm", "fleet")
    return [
        f"Assistant {seed}-{index}. "
        + " ".join(f"{rng.choice(words)} {rng.randrange(1000)}" for _ in range(PREFIX_CHARACTERS // 8))[
            :PREFIX_CHARACTERS
        ]
        for index in range(count)
    ]


async def ask(session: aiohttp.ClientSession, url: str, model: str, system: str, question: str) -> Answer:
    """One streamed chat completion; raises on any answer that is not a whole, good one."""
    body = {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    usage: dict[str, Any] = {}
    sent, ttft_s, done = time.monotonic(), 0.0, False
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            raise aiohttp.ClientResponseError(
                response.request_info, (), status=response.status, message=(await response.text())[:200]
            )
        async for line in response.content:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                done = True
                break
            event = json.loads(line[6:])
            ttft_s = ttft_s or (time.monotonic() - sent if event.get("choices") else 0.0)
            usage = event.get("usage") or usage
        instance = response.headers.get("x-warmpath-instance", "")
    if not done or not usage:
        raise aiohttp.ClientPayloadError("the stream ended before its last event")
    cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Answer(ttft_s, usage["prompt_tokens"], cached_tokens, instance)


async def send(url: str, model: str, prompts: list[str], *, requests: int, concurrency: int, seed: int) -> Tally:
    """`requests` requests in a closed loop of `concurrency`, each opening with a prompt chosen at random."""
    rng = random.Random(seed)  # noqa: S311
    orders = iter([(rng.choice(prompts), f"Question {seed}-{index}?") for index in range(requests)])
    tally = Tally()

    async def worker(session: aiohttp.ClientSession) -> None:
        for system, question in orders:
            await attempt(tally, session, url, model, system, question)

    async with open_session() as session:
        await asyncio.gather(*(worker(session) for _ in range(concurrency)))
    return tally


async def attempt(
    tally: Tally, session: aiohttp.ClientSession, url: str, model: str, system: str, question: str
) -> None:
    """One request into the tally, whatever comes of it."""
    try:
        tally.answers.append(await ask(session, url, model, system, question))
    except aiohttp.ClientResponseError as error:
        tally.failures[f"HTTP {error.status}: {error.message}"] += 1
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.failures[f"{type(error).__name__}: {error}"] += 1


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120, sock_connect=5))
