"""The simulated engine over real sockets, asked by the stock openai client."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from infra.local import server
from infra.local.engines.simulated import Engine, Settings
from infra.local.server import Server

SETTINGS = Settings(alias="demo", prefill_tokens_per_s=1e5, decode_tokens_per_s=1e4, slots=2)
PREFIX = "You are a helpful assistant. " * 40


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    engine = Engine(SETTINGS)
    runner = engine.runner()
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield engine, f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def client(engine: tuple[Engine, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{engine[1]}/v1", api_key="none", max_retries=0, timeout=5) as client:
        yield client


def chat(question: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": PREFIX}, {"role": "user", "content": question}]
    return {"model": "demo", "messages": messages, "max_tokens": 4, **more}


async def metrics_of(url: str) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    return {name: float(value) for name, value in re.findall(r"^(vllm:\w+)\{.*\} (\S+)$", text, re.MULTILINE)}


async def test_a_shared_beginning_is_cached_and_counted_in_usage_and_metrics(
    engine: tuple[Engine, str], client: openai.AsyncOpenAI
) -> None:
    first = await client.chat.completions.create(**chat("one?"))
    second = await client.chat.completions.create(**chat("two?"))
    assert first.usage is not None
    assert second.usage is not None
    assert first.usage.prompt_tokens_details.cached_tokens == 0  # type: ignore[union-attr]
    cached_tokens = second.usage.prompt_tokens_details.cached_tokens  # type: ignore[union-attr]
    assert len(PREFIX) / 4 - 16 <= (cached_tokens or 0) < second.usage.prompt_tokens
    metrics = await metrics_of(engine[1])
    assert metrics["vllm:prefix_cache_hits_total"] == cached_tokens
    assert metrics["vllm:prefix_cache_queries_total"] == first.usage.prompt_tokens + second.usage.prompt_tokens
    assert metrics["vllm:num_requests_running"] == metrics["vllm:num_requests_waiting"] == 0
    assert metrics["vllm:kv_cache_usage_perc"] == 0


async def test_a_stream_gives_one_event_a_token_then_the_end_then_the_usage(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(**chat("?", stream=True, stream_options={"include_usage": True}))
    events = [event async for event in stream]
    assert [event.choices[0].delta.content for event in events[:-2]] == [" warm", " nodes", " keep", " their"]
    assert events[-2].choices[0].finish_reason == "length"
    assert events[-1].choices == []
    assert events[-1].usage.completion_tokens == 4
    assert len({event.id for event in events}) == 1


async def test_completions_and_models_answer_too(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="demo", prompt="Once", max_tokens=2)
    assert answer.choices[0].text == " warm nodes"
    assert [model.id for model in (await client.models.list()).data] == ["demo"]


async def test_prefill_takes_time_for_what_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def note(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("infra.local.engines.simulated.asyncio.sleep", note)
    engine = Engine(Settings(prefill_tokens_per_s=100.0))
    tokens = [str(index) for index in range(160)]
    await engine._fill(tokens)
    await engine._fill(tokens)
    assert slept == [1.6, 0.01]


async def test_requests_beyond_the_slots_wait_and_are_counted(
    engine: tuple[Engine, str], client: openai.AsyncOpenAI
) -> None:
    engine[0].faults.slow = 1e9
    tasks = [asyncio.create_task(client.chat.completions.create(**chat(f"{index}?"))) for index in range(3)]
    while (await metrics_of(engine[1]))["vllm:num_requests_waiting"] < 1:  # noqa: ASYNC110 - the engine is asked
        await asyncio.sleep(0.01)
    metrics = await metrics_of(engine[1])
    assert metrics["vllm:num_requests_running"] == 2
    assert 0 < metrics["vllm:kv_cache_usage_perc"] < 1

    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(5):
        while engine[0].counts.running or engine[0].counts.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    engine[0].faults.slow = 1.0
    await client.chat.completions.create(**chat("after?"))


async def test_faults_meet_as_many_requests_as_was_asked_for(
    engine: tuple[Engine, str], client: openai.AsyncOpenAI
) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(f"{engine[1]}/_faults", json={"fail_next": 1, "status": 503, "drop_next": 1})
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(**chat("dropped"))
        with pytest.raises(openai.InternalServerError, match="a fault that was asked for"):
            await client.chat.completions.create(**chat("failed"))
        await client.chat.completions.create(**chat("fine"))

        await session.post(f"{engine[1]}/_faults", json={"hang_next": 1, "unhealthy": True})
        with pytest.raises(openai.APITimeoutError):
            await client.with_options(timeout=0.1).chat.completions.create(**chat("hangs"))
        assert (await session.get(f"{engine[1]}/health")).status == 503
        await session.post(f"{engine[1]}/_faults", json={})
        assert (await session.get(f"{engine[1]}/health")).status == 200
        assert (await session.post(f"{engine[1]}/_faults", json={"explode": 1})).status == 400


async def test_what_is_no_request_is_refused(engine: tuple[Engine, str]) -> None:
    async with aiohttp.ClientSession() as session:
        for body in ("{", "[]", '{"prompt": 1}', '{"messages": [{"role": "user"}], "max_tokens": "many"}'):
            for path in ("/v1/chat/completions", "/v1/completions"):
                assert (await session.post(f"{engine[1]}{path}", data=body)).status == 400


def test_an_engine_without_weights_does_not_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.local.engines.simulated", "--model-dir", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert "holds no weights" in ended.stderr


def start(directory: Path, *options: str) -> Server:
    port = server.free_ports(1)[0]
    command = [sys.executable, "-m", "infra.local.engines.simulated", "--port", str(port), *options]
    return server.start(command, url=f"http://127.0.0.1:{port}", health="/health", log=directory / "engine.log")


def test_sigterm_lets_the_request_in_flight_end(tmp_path: Path) -> None:
    with start(tmp_path, "--decode-tokens-per-s", "100") as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client, client.completions.create(model="x", prompt="Once", max_tokens=20, stream=True) as stream:
            next(iter(stream))
            running.process.terminate()
            assert [event.choices[0].finish_reason for event in stream][-1] == "length"
        assert running.process.wait(5) == 0


def test_an_engine_can_be_told_to_die_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    with start(tmp_path) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        faults = json.dumps({"die_after_tokens": 2}).encode()
        urllib.request.urlopen(f"{running.url}/_faults", faults).close()  # noqa: S310
        with client, pytest.raises(openai.APIConnectionError):
            list(client.completions.create(model="x", prompt="Once", max_tokens=20, stream=True))
        assert running.process.wait(5) == 1
