"""A real engine on the CPU: llama.cpp's server on the first GGUF of a directory.

    python -m infra.local.engines.llama --model-dir DIR --host 127.0.0.1 --port 8000

It speaks the OpenAI API with SSE, keeps a true prefix cache in its slots, and counts what it reused in
`usage.prompt_tokens_details.cached_tokens`. SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path

import xllamacpp  # type: ignore[import-untyped]

log = logging.getLogger("engine")


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    # Blocked before the server's threads start, so that the signal waits for the main thread.
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    started = time.monotonic()
    try:
        model = find_gguf(options.model_dir)
        server = xllamacpp.Server(parameters(model, options))
    except (FileNotFoundError, RuntimeError) as error:
        log.error("%s", error)  # noqa: TRY400 - the sentence says it all
        return 1
    log.info("%s is ready at %s in %.2f s", model.name, server.listening_address, time.monotonic() - started)
    received = signal.sigwait(stopping)
    log.info("stopping on %s", signal.Signals(received).name)
    # llama.cpp's destructor waits for requests in flight; a pod that ends has been drained by the router.
    os._exit(0)


def find_gguf(directory: Path) -> Path:
    """The first *.gguf by name."""
    found = sorted(directory.glob("*.gguf"))
    if not found:
        raise FileNotFoundError(
            f"{directory} holds no *.gguf file; this engine runs nothing else. Give a model directory with one."
        )
    return found[0]


def parameters(model: Path, options: argparse.Namespace) -> xllamacpp.CommonParams:
    settings = xllamacpp.CommonParams()
    settings.model.path = str(model)
    settings.model_alias = {options.alias or model.stem}
    settings.hostnames = [options.host]
    settings.port = options.port
    settings.n_ctx = options.context
    settings.n_parallel = options.slots
    settings.n_gpu_layers = 0
    settings.cpuparams.n_threads = options.threads
    settings.cpuparams_batch.n_threads = options.threads
    # One pool of KV cells for all slots: a single long prompt may use the whole context.
    settings.kv_unified = True
    settings.cache_ram_mib = options.prompt_cache_mib
    settings.endpoint_metrics = True
    settings.endpoint_slots = True
    settings.ui = False
    settings.warmup = False
    return settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m infra.local.engines.llama", description="llama.cpp on the CPU")
    parser.add_argument("--model-dir", type=Path, required=True, help="directory with a *.gguf")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--context", type=int, default=16384, help="tokens of KV cache, shared by the slots")
    parser.add_argument("--slots", type=int, default=2, help="requests served at once, and prefixes kept")
    parser.add_argument("--alias", default="", help="name of the model in the API")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompt-cache-mib", type=int, default=0, help="memory for prefixes that lost their slot")
    return parser


if __name__ == "__main__":
    sys.exit(main())
