"""Reading recorded traffic."""

import json
from pathlib import Path

import pytest

from router.simulation.engine import BLOCK_TOKENS
from router.simulation.traces import BadTrace, read_trace


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def mooncake(at_ms: int, *blocks: int, tokens: int | None = None) -> dict[str, object]:
    length = len(blocks) * BLOCK_TOKENS if tokens is None else tokens
    return {"timestamp": at_ms, "input_length": length, "output_length": 5, "hash_ids": list(blocks)}


def test_mooncake_requests_keep_times_sizes_and_blocks(tmp_path: Path):
    trace = write(tmp_path / "t.jsonl", mooncake(1000, 1, 2, tokens=700), mooncake(3000, 7))
    first, second = read_trace(trace, speed=2.0)
    assert (first.at, second.at) == (0.0, 1.0)
    assert (first.tokens, first.output_tokens, first.blocks, first.full_blocks) == (700, 5, (1, 2), (1,))


def test_a_request_that_extends_an_earlier_one_is_its_next_turn(tmp_path: Path):
    trace = write(
        tmp_path / "t.jsonl", mooncake(0, 1, 2), mooncake(1, 8, 9), mooncake(2, 1, 2, 3), mooncake(3, 1, 2, 3, 4)
    )
    one, other, two, three = read_trace(trace)
    assert [one.turn, other.turn, two.turn, three.turn] == [0, 0, 1, 2]
    assert one.session == two.session == three.session != other.session
    assert one.anchor == two.anchor == three.anchor


def test_a_system_prompt_that_many_share_does_not_make_them_one_session(tmp_path: Path):
    trace = write(tmp_path / "t.jsonl", *(mooncake(at, 1, 100 + at) for at in range(30)))
    assert len({request.session for request in read_trace(trace)}) == 30


def chat(at: object, *texts: str, usage: dict[str, int] | None = None) -> dict[str, object]:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    row: dict[str, object] = {"timestamp": at, "request": {"model": "m", "messages": messages}}
    return row if usage is None else {**row, "response": {"usage": usage}}


def test_an_openai_log_shares_blocks_where_conversations_share_text(tmp_path: Path):
    long = "x" * 9000
    trace = write(
        tmp_path / "t.jsonl",
        chat("2026-01-01T00:00:00+00:00", long, usage={"prompt_tokens": 2250, "completion_tokens": 40}),
        chat(
            "2026-01-01T00:00:10+00:00", long, "answer", "more", usage={"prompt_tokens": 2300, "completion_tokens": 9}
        ),
        chat("2026-01-01T00:00:11+00:00", "y" * 9000),
    )
    first, second, other = read_trace(trace)
    assert second.at == 10.0
    assert (first.tokens, first.output_tokens) == (2250, 40)
    assert first.full_blocks == second.full_blocks[:4]
    assert (second.session, second.turn) == (first.session, 1)
    assert not set(other.blocks) & set(first.blocks)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("{not json", "line 1 is not JSON"),
        ("[1]", "expected an object"),
        ('{"timestamp": 1, "hash_ids": [1]}', "input_length"),
        ('{"timestamp": 1, "request": {"model": "m"}}', "prompt"),
        ("", "holds no requests"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, names: str):
    trace = tmp_path / "t.jsonl"
    trace.write_text(line + "\n")
    with pytest.raises(BadTrace, match=names):
        read_trace(trace)


def test_a_speed_must_be_above_nothing(tmp_path: Path):
    with pytest.raises(ValueError, match="above 0"):
        read_trace(write(tmp_path / "t.jsonl", mooncake(0, 1)), speed=0)
