"""Run `roll_endpoint` and SIGKILL it after a write to the cluster of a sort that no run died after before.

`python -m tests.flows.killing KILLS`: a line "kill" or "run" on stdin is a run; a line on stdout tells how it ended;
KILLS collects the sorts of writes. Each run is a child forked from this process, which has imported everything and
started nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.parameters import RollEndpoint
from flows.roll_endpoint import roll_endpoint
from tasks.kube import EmbeddedKube
from tasks.plan import deployments

WRITES = ("create", "apply", "patch", "delete")
LOCK = threading.Lock()


def sort_of(verb: str, subject: Any, body: Any, subresource: str) -> str:
    """What a write does, such as `create Job fill` or `patch InferenceEndpointConfig status Rolling`."""
    kind = subject if isinstance(subject, str) else subject["kind"]
    labels = subject["metadata"].get("labels", {}) if isinstance(subject, dict) else {}
    status = body.get("status", {}) if subresource and isinstance(body, dict) else {}
    told = status.get("reason") or status.get("state") or labels.get("warmpath.dev/job", "")
    return " ".join(filter(None, (verb, kind, subresource, told)))


def die_once_after_each_sort(kills: Path) -> None:
    """Make the first write of a new sort, of whatever thread, the last thing that this process does."""
    seen = set(kills.read_text().splitlines()) if kills.exists() else set()

    def wrap(verb: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(kube: EmbeddedKube, subject: Any, *arguments: Any, **more: Any) -> Any:
            result = write(kube, subject, *arguments, **more)
            body = arguments[1] if len(arguments) > 1 else None
            sort = sort_of(verb, subject, body, more.get("subresource", ""))
            with LOCK:
                if sort not in seen:
                    with kills.open("a") as told:
                        told.write(f"{sort}\n")
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    for verb in WRITES:
        setattr(EmbeddedKube, verb, wrap(verb, getattr(EmbeddedKube, verb)))


def main() -> None:
    deployments.DRAIN_S = 0  # as in the fixture `fleet`
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            if line.strip() == "kill":
                die_once_after_each_sort(Path(sys.argv[1]))
            state = roll_endpoint(RollEndpoint(endpoint="chat", ready_timeout_s=20), return_state=True)
            os._exit(0 if state.name == "Completed" else 1)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
