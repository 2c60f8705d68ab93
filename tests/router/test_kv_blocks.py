"""Prompts as chains of hashes."""

from hypothesis import given
from hypothesis import strategies as st

from router.kv.blocks import BLOCK_BYTES, MAX_BLOCKS, chain_blocks, rendezvous_order
from router.kv.prompt import chain_of
from router.request import Document

KEY = 7


def hashes(prompt: bytes, *, key: int = KEY, scope: bytes = b"m") -> tuple[int, ...]:
    return chain_blocks(prompt, key=key, scope=scope, anchor_bytes=10).hashes


def chat(*messages: tuple[str, str], **fields: object) -> Document:
    return {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages], **fields}


def chain(document: Document, hint: str = ""):
    return chain_of(document, b"", key=KEY, hint=hint)


def shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), len(left))


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_chains_share_exactly_their_common_full_blocks(common: int, left: int, right: int):
    beginning = b"x" * (common * BLOCK_BYTES)
    one = hashes(beginning + b"1" * (left * BLOCK_BYTES))
    two = hashes(beginning + b"2" * (right * BLOCK_BYTES))
    assert len(one) == common + left
    assert one[:common] == two[:common]
    assert not set(one[common:]) & set(two[common:])


def test_a_block_stands_for_everything_before_it():
    """Pain 31: unchained hashes match blocks whose beginnings differ."""
    tail = b"t" * BLOCK_BYTES
    assert hashes(b"a" * BLOCK_BYTES + tail)[1] != hashes(b"b" * BLOCK_BYTES + tail)[1]


def test_another_key_or_scope_shares_nothing():
    """Pain 51: the adapter is part of what is cached."""
    prompt = b"x" * (3 * BLOCK_BYTES)
    assert not set(hashes(prompt)) & set(hashes(prompt, key=8))
    assert not set(hashes(prompt)) & set(hashes(prompt, scope=b"m\0adapter"))


def test_a_huge_prompt_is_looked_up_by_its_beginning_only():
    huge = chain_blocks(b"x" * ((MAX_BLOCKS + 5) * BLOCK_BYTES), key=KEY, scope=b"m", anchor_bytes=1)
    assert len(huge.hashes) == MAX_BLOCKS
    assert huge.size_bytes == (MAX_BLOCKS + 5) * BLOCK_BYTES


def test_the_next_turn_continues_the_chain_and_keeps_the_anchor():
    question = "q" * 5000
    first = chain(chat(("system", "s" * 3000), ("user", question)))
    second = chain(chat(("system", "s" * 3000), ("user", question), ("assistant", "a" * 3000), ("user", "more")))
    assert second.hashes[: len(first.hashes)] == first.hashes
    assert second.anchor == first.anchor
    assert (first.follow_up, second.follow_up) == (False, True)


def test_conversations_under_one_system_prompt_have_their_own_anchors():
    """Pain 8: one shared system prompt must not mean one instance."""
    system = "s" * 50_000
    anchors = {chain(chat(("system", system), ("user", f"question {n}"))).anchor for n in range(50)}
    assert len(anchors) == 50


def test_sampling_and_ids_change_nothing():
    """Pain 33: an id of the request is not a session."""
    plain = chat(("user", "x" * 5000))
    assert chain(plain) == chain({**plain, "temperature": 0.3, "user": "someone", "metadata": {"trace": "1"}})


def test_tools_adapters_and_salts_part_prompts_but_hints_only_move_the_home():
    plain = chat(("user", "x" * 5000))
    for other in ({"tools": [{"type": "function"}]}, {"lora_path": "a"}, {"cache_salt": "tenant"}):
        assert shared(chain(plain).hashes, chain({**plain, **other}).hashes) == 0
    hinted = chain({**plain, "prompt_cache_key": "k"})
    assert hinted.hashes == chain(plain).hashes
    assert hinted.anchor != chain(plain).anchor
    assert chain(plain, hint="h").anchor not in (hinted.anchor, chain(plain).anchor)


def test_images_count_by_their_content():
    """Pain 29."""

    def picture(url: str) -> Document:
        part = {"type": "image_url", "image_url": {"url": url}}
        return {"model": "m", "messages": [{"role": "user", "content": [part, {"type": "text", "text": "x" * 5000}]}]}

    assert shared(chain(picture("data:1")).hashes, chain(picture("data:2")).hashes) == 0


def test_a_body_without_a_prompt_counts_by_its_bytes():
    body = b"\x00" * (2 * BLOCK_BYTES)
    assert len(chain_of(None, body, key=KEY).hashes) == 2
    assert chain_of({"inputs": 3}, body, key=KEY).hashes == chain_of(None, body, key=KEY).hashes


@given(st.integers(0, 2**63), st.sets(st.integers(0, 2**63), min_size=1, max_size=9), st.integers(0, 2**63))
def test_a_joiner_changes_nothing_between_the_others(anchor: int, known: set[int], joiner: int):
    seeds = [*known, joiner] if joiner not in known else list(known)
    before = [seeds[at] for at in rendezvous_order(anchor, seeds[: len(known)], [1.0] * len(known))]
    after = [seeds[at] for at in rendezvous_order(anchor, seeds, [1.0] * len(seeds))]
    assert [seed for seed in after if seed in known] == before


def test_homes_follow_the_weights():
    homes = [rendezvous_order(anchor, [1, 2], [1.0, 0.25])[0] for anchor in range(4000)]
    assert 0.17 < sum(homes) / len(homes) < 0.23
