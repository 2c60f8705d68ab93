"""llama.cpp on the model that is made on the spot: the engine that the demo rolls out."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from infra.local import server
from infra.local.engines.llama import find_gguf
from infra.local.engines.llama import parameters as parameters_of
from infra.local.model import GGUF_NAME
from infra.local.server import Server

pytestmark = pytest.mark.local

COMMAND = [sys.executable, "-m", "infra.local.engines.llama"]
PREFIX = "The warm nodes keep a verified copy of the weights. " * 30


@pytest.fixture(scope="module")
def engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = server.free_ports(1)[0]
    with server.start(
        [*COMMAND, "--model-dir", str(model), "--port", str(port), "--alias", "demo", "--context", "4096"],
        url=f"http://127.0.0.1:{port}",
        health="/health",
        log=tmp_path_factory.mktemp("llama") / "engine.log",
    ) as running:
        yield running


@pytest.fixture
def client(engine: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_shared_beginning_is_taken_from_the_cache_and_counted(client: openai.OpenAI) -> None:
    usages = []
    for question in ("one?", "two?"):
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "system", "content": PREFIX}, {"role": "user", "content": question}],
            max_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = list(stream)
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        assert text.replace(" ", "").isalpha()
        usages.append(events[-1].usage)
    first, second = usages
    assert first is not None
    assert second is not None
    assert (first.prompt_tokens_details.cached_tokens or 0) < 5  # type: ignore[union-attr]
    assert (second.prompt_tokens_details.cached_tokens or 0) > 0.9 * second.prompt_tokens  # type: ignore[union-attr]
    assert second.completion_tokens == 4


def test_the_model_answers_to_its_alias(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list().data] == ["demo"]
    assert client.completions.create(model="demo", prompt="Once", max_tokens=3).usage.completion_tokens == 3  # type: ignore[union-attr]


def test_sigterm_ends_it_cleanly_also_during_a_request(model: Path, tmp_path: Path) -> None:
    port = server.free_ports(1)[0]
    with server.start(
        [*COMMAND, "--model-dir", str(model), "--port", str(port), "--context", "4096"],
        url=f"http://127.0.0.1:{port}",
        health="/health",
        log=tmp_path / "engine.log",
    ) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client, client.completions.create(model="x", prompt="Once", max_tokens=3000, stream=True) as stream:
            next(iter(stream))
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(5) == 0
    assert "stopping on SIGTERM" in (tmp_path / "engine.log").read_text()


def test_a_directory_without_gguf_is_refused_by_name(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "--model-dir", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    assert f"{tmp_path} holds no *.gguf" in ended.stdout


def test_a_file_that_is_no_model_ends_the_engine(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF nonsense")
    ended = subprocess.run(
        [*COMMAND, "--model-dir", str(tmp_path)], capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode != 0


def test_the_first_gguf_by_name_is_served(model: Path, tmp_path: Path) -> None:
    assert find_gguf(model).name == GGUF_NAME
    (tmp_path / "b.gguf").touch()
    (tmp_path / "a.gguf").touch()
    options = argparse.Namespace(host="127.0.0.1", port=1, alias="", context=64, slots=1, threads=1, prompt_cache_mib=0)
    assert parameters_of(find_gguf(tmp_path), options).model.path.endswith("a.gguf")


def test_the_engine_keeps_its_context_for_one_long_prompt(engine: Server, client: openai.OpenAI) -> None:
    """One pool for all slots: half a context would refuse this prompt."""
    answer = client.completions.create(model="demo", prompt=json.dumps(PREFIX * 4), max_tokens=1)
    assert answer.usage.prompt_tokens > 2100  # type: ignore[union-attr]
