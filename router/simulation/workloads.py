"""Made-up traffic: documents that many ask about, chats, and coding agents. Sizes in tokens, rates per second."""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from router.simulation.engine import BLOCK_TOKENS, Request
from router.simulation.fleet import seeded

_MAX_CONTEXT_TOKENS = 100_000
# How much of the first user message decides the home, in blocks: 16 KiB of text.
ANCHOR_BLOCKS = 8


def mix(number: int) -> int:
    """A 64-bit hash of a number (splitmix64)."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ (number >> 31)


@dataclass(frozen=True, slots=True)
class Documents:
    """Questions about documents of Zipf popularity: retrieval, templates, few-shot prompts."""

    requests: int = 7000
    per_s: float = 20.0
    documents: int = 400
    zipf: float = 1.0
    document_tokens: int = 8192
    question_tokens: int = 300
    output_tokens: int = 180
    hot_share: float = 0.0
    """Share of all requests that ask about document 0."""

    seed: int = 3

    def build(self) -> list[Request]:
        chance, popularity = seeded(self.seed), _zipf(self.documents, self.zipf)
        shared, now, built = self.document_tokens // BLOCK_TOKENS, 0.0, []
        for number in range(self.requests):
            now += chance.expovariate(self.per_s)
            document = 0 if chance.random() < self.hot_share else bisect(popularity, chance.random())
            tokens = self.document_tokens + _tokens(chance, self.question_tokens, 20)
            blocks = [mix(document * 1000 + at + 1) for at in range(shared)]
            blocks += [mix(10**9 + number * 100 + at) for at in range(-(-tokens // BLOCK_TOKENS) - shared)]
            output = _tokens(chance, self.output_tokens, 8)
            anchor = blocks[min(ANCHOR_BLOCKS, shared) - 1]
            built.append(Request(now, tokens, output, tuple(blocks), anchor, session=blocks[0]))
        return built


@dataclass(frozen=True, slots=True)
class Conversations:
    """Sessions of several turns under a few tenants' shared system prompts."""

    sessions: int = 1400
    per_s: float = 3.6
    turns: float = 7.0
    system_tokens: int = 2048
    user_tokens: int = 350
    output_tokens: int = 250
    think_s: float = 25.0
    tenants: int = 12
    seed: int = 5

    def build(self) -> list[Request]:
        chance, popularity = seeded(self.seed), _zipf(self.tenants, 1.0)
        started, built = 0.0, []
        for session in range(self.sessions):
            started += chance.expovariate(self.per_s)
            built += self._session(chance, session, bisect(popularity, chance.random()), started)
        return sorted(built, key=lambda request: request.at)

    def _session(self, chance: Random, session: int, tenant: int, now: float) -> list[Request]:
        shared, context, anchor, built = self.system_tokens // BLOCK_TOKENS, self.system_tokens, 0, []
        blocks = [mix(77_000_000 + tenant * 100 + at) for at in range(shared)]
        for turn in range(max(1, int(chance.expovariate(1 / self.turns)))):
            asked = _tokens(chance, self.user_tokens, 20)
            output = _tokens(chance, self.output_tokens, 10)
            context += asked
            if context > _MAX_CONTEXT_TOKENS:
                break
            full = context // BLOCK_TOKENS
            blocks += [mix(10**12 + session * 10_000 + at - shared) for at in range(len(blocks), full)]
            if turn == 0:
                deep = shared + ANCHOR_BLOCKS
                anchor = blocks[deep - 1] if full >= deep else mix(999 + session)
            tail = (mix(10**13 + session * 10_000 + turn),) if context % BLOCK_TOKENS else ()
            built.append(Request(now, context, output, (*blocks[:full], *tail), anchor, mix(999 + session), turn))
            context += output
            now += output * 0.03 + 2 + chance.expovariate(1 / self.think_s)
        return built


RAG_ZIPF = Documents()
RAG_HOT = Documents(hot_share=0.3)
AWS_LIKE = Documents(per_s=9, documents=900, zipf=0.3, question_tokens=700, output_tokens=150)
CHAT = Conversations()
AGENT = Conversations(
    sessions=420,
    per_s=0.9,
    turns=18,
    system_tokens=6144,
    user_tokens=900,
    output_tokens=160,
    think_s=4,
    tenants=4,
    seed=8,
)

WORKLOADS: dict[str, Documents | Conversations] = {
    "rag_zipf": RAG_ZIPF,
    "rag_hot": RAG_HOT,
    "aws_like": AWS_LIKE,
    "chat": CHAT,
    "agent": AGENT,
}


def _tokens(chance: Random, mean: float, least: int) -> int:
    return max(least, int(chance.expovariate(1 / mean)))


def _zipf(count: int, exponent: float) -> list[float]:
    weights = [1 / (rank + 1) ** exponent for rank in range(count)]
    total = sum(weights)
    return list(accumulate(weight / total for weight in weights))
