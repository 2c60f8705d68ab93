"""A quiet stream of requests in the background, to see that nothing is lost while the fleet changes under it."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from infra.cli.demo.traffic import Tally, attempt, conversations, open_session


class BackgroundStream:
    """Sends one request after another, `pause_s` apart, from a thread of its own until it is closed."""

    def __init__(self, url: str, model: str, *, seed: int, pause_s: float = 0.2) -> None:
        self.tally = Tally()
        self._url, self._model, self._seed, self._pause_s = url, model, seed, pause_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._send()), name="background-stream")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._thread.join()

    async def _send(self) -> None:
        prompts = [prompt[:600] for prompt in conversations(self._seed, 3)]
        count = 0
        async with open_session() as session:
            while not self._closing.is_set():
                await attempt(self.tally, session, self._url, self._model, prompts[count % 3], f"Question {count}?")
                count += 1
                await asyncio.sleep(self._pause_s)
