"""What makes the routing key of a request, and what never does."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from router.request import canonical_prompt, model_of, prefix_key, read_document

CHAT = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are terse. Café ☕ \U0001f600"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": "a"}],
        },
    ],
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"b": 1, "a": 2}}}],
    "temperature": 0.1,
    "stream": True,
}


def key(body: dict[str, Any] | bytes, *, length: int = 1024, hint: str = "", seed: int = 0, **dumps: Any) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body, **dumps).encode()
    return prefix_key(read_document(raw), raw, prefix_length=length, hint=hint, seed=seed)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same document with its keys in another order."""
    if isinstance(value, dict):
        items = [(name, shuffled(item, rng)) for name, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


text = st.text(max_size=30)
content = text | st.lists(
    st.fixed_dictionaries({"type": st.just("text"), "text": text})
    | st.fixed_dictionaries({"type": st.just("image_url"), "image_url": st.fixed_dictionaries({"url": text})}),
    max_size=3,
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": content}), max_size=4
)
documents = st.fixed_dictionaries(
    {"model": text, "messages": messages, "temperature": st.floats(0, 2), "user": text},
    optional={"tools": st.lists(st.dictionaries(text, text, max_size=3), max_size=2), "prompt_cache_key": text},
)


@given(document=documents, seed=st.integers(), ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_key_order_white_space_and_escapes_never_change_the_key(
    document: dict[str, Any], seed: int, ascii_only: bool, indent: int | None
) -> None:
    other = shuffled(document, random.Random(seed))
    assert key(document) == key(other, ensure_ascii=ascii_only, indent=indent)


@pytest.mark.parametrize(
    "change", [{"temperature": 1}, {"stream": False}, {"user": "u"}, {"max_tokens": 7}, {"seed": 1}, {"n": 2}]
)
def test_sampling_parameters_and_ids_never_change_the_key(change: dict[str, Any]) -> None:
    assert key(CHAT | change) == key(CHAT)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"tools": [{"type": "function", "function": {"name": "other"}}]},
        {"prompt_cache_key": "k"},
        {"cache_salt": "s"},
        {"lora_path": "l"},
        {"messages": [{"role": "user", "content": "You are terse."}]},
        {"messages": CHAT["messages"][:1]},
        {"messages": [{**CHAT["messages"][0], "role": "user"}, CHAT["messages"][1]]},
        {"messages": [CHAT["messages"][0], {"role": "user", "content": [{"type": "image_url", "image_url": "b"}]}]},
    ],
)
def test_what_an_engine_computes_on_changes_the_key(change: dict[str, Any]) -> None:
    assert key(CHAT | change) != key(CHAT)


def test_hint_seed_and_prefix_are_combined() -> None:
    keys = [key(CHAT), key(CHAT, hint="a"), key(CHAT, hint="b"), key(CHAT, seed=1)]
    assert len(set(keys)) == 4


def test_only_the_first_characters_count() -> None:
    long = "x" * 2000
    turns = [{"model": "m", "messages": [{"role": "user", "content": long + tail}]} for tail in ("a", "b")]
    assert key(turns[0], length=1024) == key(turns[1], length=1024)
    assert key(turns[0], length=4096) != key(turns[1], length=4096)


def test_a_conversation_that_goes_on_keeps_its_beginning() -> None:
    opening = [{"role": "system", "content": "s" * 800}, {"role": "user", "content": "u" * 800}]
    more = [*opening, {"role": "assistant", "content": "fine"}, {"role": "user", "content": "and?"}]
    assert key({"model": "m", "messages": opening}) == key({"model": "m", "messages": more})


def test_tools_do_not_use_up_the_prefix() -> None:
    """However long the tools are, what is said still parts conversations."""
    tools = [
        {"type": "function", "function": {"name": f"tool{number}", "description": "d" * 100}} for number in range(50)
    ]
    keys = {key({"model": "m", "tools": tools, "messages": [{"role": "user", "content": who}]}) for who in ("a", "b")}
    assert len(keys) == 2


def test_ids_in_tool_calls_and_results_are_passed_over() -> None:
    def turn(call: str) -> dict[str, Any]:
        calls = [{"id": call, "type": "function", "function": {"name": "look", "arguments": "{}"}}]
        return {
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": call, "content": "seen"},
            ]
        }

    assert key(turn("call_1")) == key(turn("call_2"))


@pytest.mark.parametrize(
    ("document", "prompt"),
    [
        ({"prompt": "Once"}, "Once"),
        ({"prompt": ["Once", "Twice"]}, "Once\x1eTwice\x1e"),
        ({"prompt": [1, 2, 3]}, "[1,2,3]\x1e"),
        ({"input": "Hello"}, "Hello"),
        ({"inputs": "Hello"}, "Hello"),
        (
            {"instructions": "Be brief", "input": [{"role": "user", "content": "Hi"}]},
            "Be brief\x1fsystem\x1eHi\x1fuser\x1e",
        ),
        (
            {"system": [{"text": "Be"}], "messages": [{"role": "user", "content": "Hi"}]},
            "Be\x1fsystem\x1eHi\x1fuser\x1e",
        ),
    ],
)
def test_every_api_has_a_prompt(document: dict[str, Any], prompt: str) -> None:
    assert canonical_prompt(document, 1000) == prompt


@pytest.mark.parametrize(
    "body", [b"", b"[1]", b"\xff\xfe", b"not json", b'{"a": 1}', b'{"messages": 3}', b'{"a": "\\ud800"}']
)
def test_a_body_without_a_prompt_counts_by_its_first_bytes(body: bytes) -> None:
    assert key(body + b" " * 2000 + b"1") == key(body + b" " * 2000 + b"2")
    assert key(b"x" + body) != key(b"y" + body)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
fields = st.sampled_from(["model", "messages", "prompt", "input", "system", "tools", "role", "content", "cache_salt"])
odd_documents = st.dictionaries(fields, anything | st.lists(st.dictionaries(fields, anything, max_size=3), max_size=2))


@given(st.binary(max_size=60) | odd_documents.map(lambda document: json.dumps(document).encode()))
@example(b'{"model": %b, "messages": [{"role": %b, "content": %b}], "tools": [%b]}' % ((b"9" * 5000,) * 4))
@example(b'{"tools": ' + b"[" * 5000 + b"]" * 5000 + b', "prompt": "x"}')
@example(b'{"prompt": "x", "tools": ' + b"[" * 190 + b"]" * 190 + b"}")
def test_no_body_breaks_the_reading(body: bytes) -> None:
    for cut in (False, True):
        document = read_document(body, cut=cut)
        assert len(prefix_key(document, body, prefix_length=1024)) == 8
        assert isinstance(model_of(document), str)


@given(document=documents, limit=st.integers(1, 60), where=st.floats(0, 1))
def test_a_cut_body_shows_a_true_beginning_of_its_prompt(document: dict[str, Any], limit: int, where: float) -> None:
    """Large bodies are placed by their first bytes: what these show must be what the whole would show."""
    document = {"messages": document["messages"]}
    raw = json.dumps(document, ensure_ascii=False).encode()
    seen = read_document(raw[: int(len(raw) * where)], cut=True)
    shown = canonical_prompt(seen, limit) if seen else ""
    assert canonical_prompt(document, 10_000).startswith(shown.removesuffix("\x1e"))
