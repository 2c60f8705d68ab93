"""A simulated engine: vLLM's API and metrics, a block prefix cache, and time instead of work.

    python -m infra.local.engines.simulated --port 8000 --alias demo

Prefill takes time in proportion to the tokens that are not cached, one prompt after another; decoding runs for all
at once. For tests of many instances, and of faults: POST /_faults with fields of `Faults`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from aiohttp import web

from infra.local.engines.blocks import BlockCache
from infra.local.engines.completions import Answer, Prompt, event, read_prompt, usage_of

WORDS = ("warm", "nodes", "keep", "their", "weights", "and", "answer", "soon")
WEIGHTS = ("*.safetensors", "*.gguf")


@dataclass(frozen=True, slots=True)
class Settings:
    alias: str = "simulated"
    blocks: int = 2048
    block_tokens: int = 16
    slots: int = 8
    prefill_tokens_per_s: float = 4000.0
    decode_tokens_per_s: float = 200.0
    load_s: float = 0.0


DEFAULTS = Settings()


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on.

    fail_next: so many requests get `status`; hang_next: so many get no answer; drop_next: so many lose their
    connection before an answer; slow: factor on every time; die_after_tokens: the process ends after so many
    tokens of the next answer; unhealthy: /health says 503.
    """

    fail_next: int = 0
    status: int = 500
    hang_next: int = 0
    drop_next: int = 0
    slow: float = 1.0
    die_after_tokens: int | None = None
    unhealthy: bool = False


@dataclass(slots=True)
class Counts:
    running: int = 0
    waiting: int = 0
    running_blocks: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    requests: int = 0


class Engine:
    """One instance and its routes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.cache = BlockCache(settings.blocks, settings.block_tokens)
        self.faults = Faults()
        self.counts = Counts()
        self._slots = asyncio.Semaphore(settings.slots)
        self._prefill = asyncio.Lock()
        self._ids = itertools.count(1)
        self._ready_at = time.monotonic() + settings.load_s

    def runner(self) -> web.AppRunner:
        # A client that hangs up frees its slot at once.
        return web.AppRunner(self._application(), handler_cancellation=True, access_log=None, shutdown_timeout=10)

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[self._break], client_max_size=64 << 20)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/metrics", self._metrics),
                web.get("/v1/models", self._models),
                web.post("/_faults", self._set_faults),
                web.post("/v1/chat/completions", self._complete),
                web.post("/v1/completions", self._complete),
            ]
        )
        return app

    @web.middleware
    async def _break(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        faults = self.faults
        if request.method != "POST" or request.path.startswith("/_"):
            return await handler(request)
        if faults.drop_next > 0 and request.transport is not None:
            faults.drop_next -= 1
            request.transport.abort()
            await asyncio.Event().wait()  # until aiohttp notices and cancels
        if faults.hang_next > 0:
            faults.hang_next -= 1
            await asyncio.Event().wait()
        if faults.fail_next > 0:
            faults.fail_next -= 1
            return _error(faults.status, "a fault that was asked for")
        return await handler(request)

    async def _set_faults(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        unknown = sorted(set(wanted) - {entry.name for entry in fields(Faults)})
        if unknown:
            return _error(400, f"no fault is called {', '.join(unknown)}")
        self.faults = Faults(**wanted)
        return web.json_response(wanted)

    async def _health(self, _request: web.Request) -> web.Response:
        healthy = time.monotonic() >= self._ready_at and not self.faults.unhealthy
        return web.Response(status=200 if healthy else 503)

    async def _models(self, _request: web.Request) -> web.Response:
        model = {"id": self.settings.alias, "object": "model", "created": 0, "owned_by": "warmpath"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        try:
            prompt = read_prompt(await request.json(), is_chat=request.path.endswith("/chat/completions"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return _error(400, f"the request is no completion: {error!r}")
        async with self._slot(prompt):
            cached_tokens = await self._fill(prompt.tokens)
            usage = usage_of(prompt, cached_tokens)
            name = f"cmpl-{os.getpid()}-{next(self._ids)}"
            answer = Answer(name, self.settings.alias, int(time.time()), prompt.is_chat)
            self.counts.requests += 1
            if prompt.is_streamed:
                return await self._stream(request, prompt, answer, usage)
            words = [word async for word in self._decode(prompt)]
            return web.json_response(answer.whole("".join(words), usage))

    @asynccontextmanager
    async def _slot(self, prompt: Prompt) -> AsyncIterator[None]:
        """A place among the running requests; leaving it, also by a client that hung up, gives it back."""
        self.counts.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.counts.waiting -= 1
        blocks = -(-(len(prompt.tokens) + prompt.max_tokens) // self.settings.block_tokens)
        self.counts.running += 1
        self.counts.running_blocks += blocks
        try:
            yield
        finally:
            self.counts.running -= 1
            self.counts.running_blocks -= blocks
            self._slots.release()

    async def _fill(self, tokens: list[str]) -> int:
        """Prefill what is not cached; returns how many tokens were."""
        async with self._prefill:
            cached_tokens = self.cache.cached_tokens(tokens)
            seconds = (len(tokens) - cached_tokens) / self.settings.prefill_tokens_per_s
            await asyncio.sleep(seconds * self.faults.slow)
            self.cache.add(tokens)
        self.counts.queried_tokens += len(tokens)
        self.counts.hit_tokens += cached_tokens
        self.counts.prompt_tokens += len(tokens)
        return cached_tokens

    async def _decode(self, prompt: Prompt) -> AsyncIterator[str]:
        for index in range(prompt.max_tokens):
            if self.faults.die_after_tokens is not None and index >= self.faults.die_after_tokens:
                os._exit(1)
            if index:
                await asyncio.sleep(self.faults.slow / self.settings.decode_tokens_per_s)
            self.counts.generated_tokens += 1
            yield f" {WORDS[index % len(WORDS)]}"

    async def _stream(
        self, request: web.Request, prompt: Prompt, answer: Answer, usage: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        async for word in self._decode(prompt):
            await response.write(event(answer.chunk(word)))
        await response.write(event(answer.chunk("", finish_reason="length")))
        if prompt.with_usage:
            await response.write(event(answer.usage_chunk(usage)))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _metrics(self, _request: web.Request) -> web.Response:
        counts, settings = self.counts, self.settings
        label = f'model_name="{settings.alias}"'
        config = f'block_size="{settings.block_tokens}",num_gpu_blocks="{settings.blocks}"'
        lines = [
            f"vllm:num_requests_running{{{label}}} {counts.running}",
            f"vllm:num_requests_waiting{{{label}}} {counts.waiting}",
            f"vllm:kv_cache_usage_perc{{{label}}} {min(1.0, counts.running_blocks / settings.blocks):.6f}",
            f"vllm:prefix_cache_queries_total{{{label}}} {counts.queried_tokens}",
            f"vllm:prefix_cache_hits_total{{{label}}} {counts.hit_tokens}",
            f"vllm:prompt_tokens_total{{{label}}} {counts.prompt_tokens}",
            f"vllm:generation_tokens_total{{{label}}} {counts.generated_tokens}",
            f'vllm:request_success_total{{finished_reason="length",{label}}} {counts.requests}',
            f'vllm:cache_config_info{{{config},enable_prefix_caching="True",engine="0"}} 1.0',
        ]
        return web.Response(text="\n".join(lines) + "\n")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "simulated", "code": status}}, status=status)


async def serve(settings: Settings, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; requests in flight get ten seconds to end."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    runner = Engine(settings).runner()
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        await stopping.wait()
    finally:
        await runner.cleanup()


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    model_dir: Path | None = options.model_dir
    if model_dir and not any(path for pattern in WEIGHTS for path in model_dir.glob(pattern)):
        sys.exit(f"{model_dir} holds no weights ({' or '.join(WEIGHTS)}); a real engine would not start either.")
    chosen = {entry.name: getattr(options, entry.name) for entry in fields(Settings)}
    asyncio.run(serve(Settings(**chosen), options.host, options.port))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.engines.simulated", description="A simulated engine")
    parser.add_argument("--model-dir", type=Path, help="refuse to start unless this directory holds weights")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--alias", default=DEFAULTS.alias, help="name of the model in the API")
    parser.add_argument("--blocks", type=int, default=DEFAULTS.blocks, help="size of the prefix cache")
    parser.add_argument("--block-tokens", type=int, default=DEFAULTS.block_tokens)
    parser.add_argument("--slots", type=int, default=DEFAULTS.slots, help="requests served at once")
    parser.add_argument("--prefill-tokens-per-s", type=float, default=DEFAULTS.prefill_tokens_per_s)
    parser.add_argument("--decode-tokens-per-s", type=float, default=DEFAULTS.decode_tokens_per_s)
    parser.add_argument("--load-s", type=float, default=DEFAULTS.load_s, help="/health says 503 for so long")
    return parser


if __name__ == "__main__":
    sys.exit(main())
