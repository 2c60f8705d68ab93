from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra.local.engines.blocks import BlockCache, tokens_of

texts = st.text(alphabet="ab", min_size=1, max_size=120)


def test_a_repeated_prompt_is_cached_but_for_its_last_token() -> None:
    cache = BlockCache(capacity=100, block_tokens=4)
    tokens = tokens_of("abcd" * 8)
    assert cache.cached_tokens(tokens) == 0
    cache.add(tokens)
    assert cache.cached_tokens(tokens) == 7
    assert cache.cached_tokens([*tokens, "more"]) == 8


def test_a_block_counts_only_after_the_same_beginning() -> None:
    cache = BlockCache(capacity=100, block_tokens=2)
    cache.add(["a", "b", "c", "d"])
    assert cache.cached_tokens(["x", "y", "c", "d", "e"]) == 0


def test_the_prompt_used_longest_ago_is_forgotten_from_its_end() -> None:
    cache = BlockCache(capacity=4, block_tokens=1)
    cache.add(["a", "b", "c"])
    cache.add(["x", "y"])
    assert len(cache) == 4
    assert cache.cached_tokens(["a", "b", "c", "d"]) == 2
    assert cache.cached_tokens(["x", "y", "z"]) == 2


@given(st.lists(texts, min_size=1, max_size=8), texts)
def test_what_is_cached_is_a_common_beginning_with_an_earlier_prompt(earlier: list[str], asked: str) -> None:
    cache = BlockCache(capacity=10_000, block_tokens=2)
    for text in earlier:
        cache.add(tokens_of(text))
    tokens = tokens_of(asked)

    def common(other: list[str]) -> int:
        same = 0
        while same < min(len(other), len(tokens)) and other[same] == tokens[same]:
            same += 1
        return same // 2 * 2

    longest = max(common(tokens_of(text)) for text in earlier)
    assert cache.cached_tokens(tokens) == min(longest, len(tokens) - 1)


@given(st.lists(texts, max_size=10), st.integers(1, 5))
def test_the_cache_never_holds_more_than_its_capacity(prompts: list[str], capacity: int) -> None:
    cache = BlockCache(capacity=capacity, block_tokens=2)
    for text in prompts:
        cache.add(tokens_of(text))
        assert len(cache) <= capacity
