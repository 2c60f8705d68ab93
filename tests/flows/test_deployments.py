from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect import Flow

ROOT = Path(__file__).parents[2]
DEPLOYMENTS = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize("entry", DEPLOYMENTS, ids=lambda entry: entry["entrypoint"])
def test_a_deployment_names_a_flow_by_its_module(entry: dict[str, Any]) -> None:
    module, _, name = entry["entrypoint"].rpartition(".")
    flow = getattr(importlib.import_module(module), name)
    assert isinstance(flow, Flow)
    assert entry["description"]
    assert entry["work_pool"]["name"] == "warmpath"


def test_every_flow_is_offered() -> None:
    offered = {entry["entrypoint"].rpartition(".")[2] for entry in DEPLOYMENTS}
    assert offered == {"roll_endpoint", "delete_endpoint"}
