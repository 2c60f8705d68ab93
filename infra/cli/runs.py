"""Start a run of a deployment and follow it to its end, through Prefect's own client."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

# Deployments of prefect.yaml.
ROLL = "roll-endpoint/from-the-ui"
DELETE = "delete-endpoint/from-the-ui"

AGAIN = (
    "A run in progress may go on without it. See what stopped: warmpath status; start it: warmpath up; then ask again: "
    "what is proven is kept."
)


class NotServed(Exception):
    """Nobody would run the deployment; the message says how to start somebody."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended. url: its page in the Prefect UI."""

    state: str
    message: str
    ok: bool
    url: str


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """A Prefect that does not answer is one sentence."""
    import httpx

    try:
        yield
    except httpx.TransportError as error:
        raise NotServed(f"Prefect does not answer ({error!r}). {AGAIN}") from error


def start(deployment: str, parameters: Mapping[str, Any]) -> UUID:
    """Ask Prefect for a run of `deployment` ("flow/name"); returns its id at once."""
    # Prefect takes a second to import; commands that do not start runs should not wait for it.
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with answered(), get_client(sync_client=True) as client:
        try:
            found = client.read_deployment_by_name(deployment)
        except ObjectNotFound as error:
            raise NotServed(f"Prefect knows no deployment {deployment!r}; start the fleet: warmpath up") from error
        return client.create_flow_run_from_deployment(found.id, parameters=dict(parameters)).id


def follow(run: UUID, ui: str, look: Callable[[str], None], every_s: float = 0.4) -> Outcome:
    """Call `look` with the run's state name until it ends. Ctrl-C leaves the run going and says where it is."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    url = f"{ui}/runs/flow-run/{run}"
    with answered(), get_client(sync_client=True) as client:
        while True:
            try:
                state = client.read_flow_run(run).state
            except ObjectNotFound as error:
                raise NotServed(f"Prefect at {ui} does not know the run {run} any more. {AGAIN}") from error
            look(str(state.name) if state else "Pending")
            if state is not None and state.is_final():
                return Outcome(str(state.name), said(state.message or ""), state.is_completed(), url)
            time.sleep(every_s)


def said(message: str) -> str:
    """A state's message without Prefect's "Flow run encountered an exception: NameOfTheError: ": ours says it all."""
    return re.sub(r"^Flow run encountered an exception: (?:\w+: )?(?=\w+: )", "", message)
