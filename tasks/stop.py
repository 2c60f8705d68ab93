"""Cooperative stop. Prefect interrupts only the flow's own thread; tasks in threads must look for themselves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar


class Stopped(Exception):
    """The run is being stopped, or has lost its endpoint to another run."""


class Left(Stopped):
    """The run ends, and what it started on the nodes may go on without it."""


class Lost(Left):
    """The endpoint belongs to another run now: nothing may be written any more."""


class Stop:
    """One run's wish to end; `why` goes into the error that its waits raise."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error = Stopped("the run is stopping")

    def request(self, why: str, kind: type[Stopped] = Stopped) -> None:
        """The first request counts."""
        if not self._event.is_set():
            self._error = kind(why)
            self._event.set()

    def wait(self, seconds: float) -> None:
        if self._event.wait(seconds):
            raise self._error


# Prefect copies the context into the threads of tasks; a global would stop other runs of the same process.
_stop: ContextVar[Stop | None] = ContextVar("stop", default=None)


def pause(seconds: float) -> None:
    """Sleep; raises Stopped at once when the run is to end."""
    (_stop.get() or Stop()).wait(seconds)


@contextlib.contextmanager
def stop_tasks_on_exit() -> Iterator[Stop]:
    """Whatever ends the block early also ends the tasks it started."""
    stop = Stop()
    token = _stop.set(stop)
    try:
        yield stop
    except BaseException:
        stop.request("the run is stopping")
        raise
    finally:
        _stop.reset(token)
