"""`python -m router` as it is run: a stock client, signals, and what it leaves in its logs."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import openai
import pytest

Rig = Any

SECRET = "sk-planted-key"
PROMPT = "planted words of a prompt"


@dataclass
class Process:
    process: asyncio.subprocess.Process
    file: Path
    log: Path
    access_log: Path
    port: int = 0

    def configure(self, document: dict[str, Any]) -> None:
        beside = self.file.with_suffix(".new")
        beside.write_text(json.dumps(document))
        beside.replace(self.file)

    async def logged(self, pattern: str) -> re.Match[str]:
        async with asyncio.timeout(60):
            while not (found := re.search(pattern, self.log.read_text())):
                assert self.process.returncode is None, self.log.read_text()
                await asyncio.sleep(0.02)
        return found


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[Process]:
    file, log, access_log = tmp_path / "process.json", tmp_path / "router.log", tmp_path / "access.jsonl"
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "--config", str(file), "--port", "0", "--log-json", str(access_log)),
            stderr=out,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
    router = Process(process, file, log, access_log)
    found = await router.logged(r"listening on http://127\.0\.0\.1:(\d+)")
    router.port = int(found[1])
    yield router
    if process.returncode is None:
        process.kill()
    await process.wait()


async def sse(engine: Any, request: Any, writer: asyncio.StreamWriter) -> None:
    """Streams words as an engine does, the last after the gate opens."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for word in ("Hello", " world"):
        delta = {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": word}}]}
        event = f"data: {json.dumps(delta)}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        if word == "Hello":
            await engine.gate.wait()
    writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")


async def test_stock_openai_client_streams_through_and_nothing_private_is_logged(router: Process, rig: Rig) -> None:
    engine = await rig.engine("a", sse)
    router.configure({"endpoints": [{"name": "m", "instances": [engine.config()]}]})
    await router.logged("routing loaded")
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{router.port}/v1", api_key=SECRET) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        messages: Any = [{"role": "user", "content": PROMPT}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        words = []
        async for event in stream:
            words.append(event.choices[0].delta.content)
            engine.gate.set()
        assert words == ["Hello", " world"]
        with pytest.raises(openai.NotFoundError, match="there is nothing"):
            await client.files.list()
    assert engine.requests[0].fields["authorization"] == f"Bearer {SECRET}"
    router.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(router.process.wait(), 30) == 0
    told = router.log.read_text() + router.access_log.read_text()
    assert SECRET not in told
    assert PROMPT not in told
    (record,) = [json.loads(line) for line in router.access_log.read_text().splitlines()]
    assert (record["instance"], record["status"], record["reason"]) == ("a", 200, "only_instance")
    assert 0 < record["ttft_s"] < record["duration_s"]


async def test_stock_boto3_client_invokes_an_endpoint(router: Process, rig: Rig) -> None:
    engine = await rig.engine("a")
    router.configure({"endpoints": [{"name": "m", "instances": [engine.config()]}]})
    await router.logged("routing loaded")
    client = boto3.client(
        "sagemaker-runtime",
        region_name="eu-west-1",
        endpoint_url=f"http://127.0.0.1:{router.port}",
        aws_access_key_id="k",
        aws_secret_access_key=SECRET,
    )
    answer = await asyncio.to_thread(
        client.invoke_endpoint, EndpointName="m", Body=b'{"inputs": "x"}', PrefixAwareId="customer 7"
    )
    assert json.loads(answer["Body"].read())["path"] == "/invocations"
    assert engine.requests[0].fields["x-amzn-sagemaker-prefix-aware-id"] == "customer 7"
    with pytest.raises(client.exceptions.ClientError, match=r"ValidationError.*'n'"):
        await asyncio.to_thread(client.invoke_endpoint, EndpointName="n", Body=b"{}")
    client.close()


async def test_sigterm_ends_what_runs_and_takes_nothing_new(router: Process, rig: Rig) -> None:
    engine = await rig.engine("a", sse)
    router.configure({"endpoints": [{"name": "m", "instances": [engine.config()]}]})
    await router.logged("routing loaded")
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(rig.post(rig.chat()))
    await reader.readuntil(b"Hello")
    router.process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(idle_reader.read(), 30) == b""
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", router.port)
    engine.gate.set()
    rest = await asyncio.wait_for(reader.read(), 30)
    assert b" world" in rest
    assert rest.endswith(b"0\r\n\r\n")
    assert await asyncio.wait_for(router.process.wait(), 30) == 0
    assert "stopped; 0 connections cut off" in router.log.read_text()
    for one in (writer, idle_writer):
        one.close()


async def test_sighup_reads_the_file_again(router: Process) -> None:
    assert "is not there" in router.log.read_text()
    router.configure({"endpoints": [{"name": "m"}]})
    await router.logged("routing loaded .* m RANDOM over 0")
    router.process.send_signal(signal.SIGHUP)
    await router.logged("(?s)routing loaded.*routing loaded")
