"""Offer the deployments of prefect.yaml from one process: `python -m infra.cli.serve`.

For one machine; a fleet runs `prefect deploy --all` and a worker. SIGTERM cancels runs in progress cleanly, and
Ctrl-C is turned into it, because Prefect would leave them Running for ever.
"""

from __future__ import annotations

import importlib
import os
import signal
from types import FrameType
from typing import Any

import yaml
from prefect import Flow, serve
from prefect.deployments.runner import RunnerDeployment
from prefect.types.entrypoint import EntrypointType

from infra.cli.home import shipped


def deployment(entry: dict[str, Any]) -> RunnerDeployment:
    """One entry of prefect.yaml as a deployment of this process."""
    module, _, name = entry["entrypoint"].rpartition(".")
    flow: Flow[..., Any] = getattr(importlib.import_module(module), name)
    made = flow.to_deployment(
        name=entry["name"],
        description=entry.get("description"),
        tags=entry.get("tags"),
        parameters=entry.get("parameters"),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    if not isinstance(made, RunnerDeployment):
        raise TypeError(f"{entry['entrypoint']} gave {type(made).__name__} where a deployment was expected")
    return made


def stop_cleanly(_signal: int, _frame: FrameType | None) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    signal.signal(signal.SIGINT, stop_cleanly)
    entries = yaml.safe_load(shipped("prefect.yaml").read_text())["deployments"]
    serve(*[deployment(entry) for entry in entries], pause_on_shutdown=False, limit=8)


if __name__ == "__main__":
    main()
