"""`python -m infra.local.cluster --dir D`: run the embedded cluster in D until SIGTERM, or until D is removed."""

from __future__ import annotations

import argparse
import fcntl
import logging
import signal
import sqlite3
import sys
import threading
from pathlib import Path

from infra.local.cluster.runner import TICK_S, Runner
from infra.local.cluster.store import Store


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local.cluster", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="directory of the cluster's state")
    directory = parser.parse_args().dir.resolve()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    store = Store(directory)
    with (directory / "runner.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"a runner already runs the cluster in {directory}: stop it first", file=sys.stderr)  # noqa: T201
            return 1
        runner = Runner(store)
        logging.info("The cluster in %s runs", directory)
        # A cluster whose directory was removed must not go on for ever, unseen.
        while not stopping.is_set() and (directory / "store.db").exists():
            try:
                runner.tick()
            except sqlite3.DatabaseError:
                logging.exception("The store does not answer; trying again")
            stopping.wait(TICK_S)
        logging.info("Stopping: ending all containers")
        runner.stop()
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
