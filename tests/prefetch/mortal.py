"""Runs the node program again and again, each time as a process that is killed on the way. Not a test itself.

Each line on standard input is {"argv": [...], "operation": n, "proven": n, "after_s": s}. SIGKILL before the n-th
operation on names or files, or s seconds after the n-th chunk was proven; 0: never. Each line of output is the wait
status of the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

# Before anything takes the size over.
from tasks.prefetch import digest

digest.CHUNK_BYTES = 64 << 10

import boto3  # noqa: E402, F401
import botocore.session  # noqa: E402, F401 - once, not in every process

from tasks.prefetch import fill, s3  # noqa: E402, F401
from tasks.prefetch.__main__ import main  # noqa: E402
from tasks.prefetch.journal import Journal  # noqa: E402

OPERATIONS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(proven: int, after_s: float) -> None:
    """Soon after the n-th chunk, however slow the machine is."""
    left, prove = proven, Journal.prove

    def counted(self: Journal, *arguments: Any) -> None:
        nonlocal left
        prove(self, *arguments)
        left -= 1
        if left == 0:
            threading.Timer(after_s, die).start()

    Journal.prove = counted


def run(argv: list[str], operation: int, proven: int, after_s: float) -> None:
    left = operation

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in OPERATIONS:
            left -= 1
            if left == 0:
                die()

    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    if operation:
        sys.addaudithook(count)
    if proven:
        die_after(proven, after_s)
    os._exit(main(argv))


for line in sys.stdin:
    child = os.fork()
    if child == 0:
        run(**json.loads(line))
    sys.stdout.write(f"{os.waitpid(child, 0)[1]}\n")
    sys.stdout.flush()
