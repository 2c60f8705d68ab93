"""A prompt as a chain of keyed block hashes: each hash stands for everything up to and including its block.

The first hash is keyed by the fleet's secret and the scope (namespace, model, adapter, cache salt, tenant), every
next one by its parent. So equal hashes mean equal prompts so far, prompts of two tenants never meet, and nothing
that is kept can be read back. Cost: one pass of XXH3 over the prompt, ~1 us per block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from xxhash import xxh3_64_intdigest

BLOCK_BYTES = 2048
# Beyond 2 MiB a prompt still counts in full as work, but only its beginning is looked up.
MAX_BLOCKS = 1024
# Of the first user message, so much decides the home. Long enough to tell documents apart, short enough to stay
# the same while a client edits the end of its first message.
ANCHOR_BYTES = 16 * 1024

# The 52 upper bits of a hash plus a half: a uniform number that is neither 0 nor 1.
_STEP = 2.0**-52


@dataclass(frozen=True, slots=True)
class Chain:
    """All that the policy keeps of a prompt."""

    hashes: tuple[int, ...]
    """One per full block, first block first."""

    anchor: int
    """Same for every turn of a conversation: decides the rendezvous home."""

    size_bytes: int
    """Of the whole canonical prompt."""

    follow_up: bool = False
    """Whether the prompt holds an earlier answer, so that some instance has most of it."""


def chain_blocks(
    prompt: bytes, *, key: int, scope: bytes, anchor_bytes: int, hint: bytes = b"", follow_up: bool = False
) -> Chain:
    """Hash a canonical prompt, whose first `anchor_bytes` are the same in every turn.

    A caller's hint changes the home only: engines do not know it, so prompts that differ in it share their blocks.
    """
    root = parent = xxh3_64_intdigest(scope, seed=key)
    view = memoryview(prompt)
    hashes = []
    for start in range(0, min(len(prompt) // BLOCK_BYTES, MAX_BLOCKS) * BLOCK_BYTES, BLOCK_BYTES):
        parent = xxh3_64_intdigest(view[start : start + BLOCK_BYTES], seed=parent)
        hashes.append(parent)
    anchor = xxh3_64_intdigest(view[:anchor_bytes], seed=xxh3_64_intdigest(hint, seed=root) if hint else root)
    return Chain(tuple(hashes), anchor, len(prompt), follow_up)


def rendezvous_order(anchor: int, seeds: Sequence[int], weights: Sequence[float]) -> list[int]:
    """Positions of the instances in the prompt's own order: shares follow the weights, only a joiner's keys move."""
    key = anchor.to_bytes(8)
    scores = [
        log((xxh3_64_intdigest(key, seed) >> 12) * _STEP + _STEP / 2) / weight
        for seed, weight in zip(seeds, weights, strict=True)
    ]
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
