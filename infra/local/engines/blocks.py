"""The prefix cache of an engine in small: blocks of tokens, each named by itself and all before it; LRU. Pure."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

CHARACTERS_PER_TOKEN = 4


def tokens_of(text: str) -> list[str]:
    """Pieces of four characters: what shares a beginning shares its tokens."""
    return [text[start : start + CHARACTERS_PER_TOKEN] for start in range(0, len(text), CHARACTERS_PER_TOKEN)]


class BlockCache:
    """At most `capacity` blocks of `block_tokens` tokens."""

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def names_of(self, tokens: Sequence[str]) -> list[bytes]:
        """Names of the full blocks of `tokens`."""
        names, name = [], b""
        for end in range(self.block_tokens, len(tokens) + 1, self.block_tokens):
            text = "\0".join(tokens[end - self.block_tokens : end])
            name = hashlib.blake2b(text.encode(), key=name, digest_size=16).digest()
            names.append(name)
        return names

    def cached_tokens(self, tokens: Sequence[str]) -> int:
        """How many leading tokens need no prefill. The last one always does: it yields the next token."""
        names = self.names_of(tokens)
        held = next((index for index, name in enumerate(names) if name not in self._blocks), len(names))
        return min(held * self.block_tokens, max(0, len(tokens) - 1))

    def add(self, tokens: Sequence[str]) -> None:
        """Keep the blocks of `tokens`, forget those used longest ago."""
        # From the end, so that the tail of a prompt goes before the beginning it needs.
        for name in reversed(self.names_of(tokens)):
            self._blocks[name] = None
            self._blocks.move_to_end(name)
        while len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
