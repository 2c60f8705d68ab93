"""Bad input is refused before anything is changed, and the field is named."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from flows.parameters import DeleteEndpoint, Gate, Parameters, RollEndpoint
from tests.flows.fleet import Fleet

KINDS = ("Deployment", "Service", "Job", "ModelDataCacheConfig", "ConfigMap", "NodeCache")


def has_nothing(fleet: Fleet) -> bool:
    return all(not fleet.kube.list(kind).items for kind in KINDS)


@pytest.mark.prefect
@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"routing": {"strategy": "FASTEST"}}, "spec.routing.strategy"),
        ({"routing": {"strategy": "PREFIX_AWARE", "prefixLength": 1023, "concurrencyThreshold": 1}}, "prefixLength"),
        ({"modelCacheConfig": {"weightsCache": {"enabled": True, "hostPath": "nvme"}}}, "hostPath"),
    ],
)
def test_a_bad_resource_is_refused_by_its_field(fleet: Fleet, spec: dict[str, Any], field: str) -> None:
    fleet.apply(**spec)
    state = fleet.roll()
    assert state.is_failed()
    assert field in str(state.message)
    status = fleet.status()
    assert (status["state"], status["reason"]) == ("DeploymentFailed", "InvalidResource")
    assert field in status["message"]
    assert has_nothing(fleet)


@pytest.mark.prefect
def test_an_endpoint_that_is_not_there(fleet: Fleet) -> None:
    fleet.kube.delete("InferenceEndpointConfig", "chat", "default")
    state = fleet.roll()
    assert state.is_failed()
    assert "warmpath apply" in str(state.message)


@pytest.mark.prefect
def test_another_source_under_the_same_name_needs_a_word(fleet: Fleet) -> None:
    fleet.roll()
    (cache,) = fleet.caches()
    (fleet.model.parent / "other").mkdir()
    (fleet.model.parent / "other" / "a.safetensors").write_bytes(b"other")
    source = {**fleet.endpoint()["spec"]["modelSourceConfig"], "modelLocation": "other"}
    fleet.apply(modelSourceConfig=source)
    state = fleet.roll()
    assert state.is_failed()
    assert "modelSourceConfig" in str(state.message)
    assert fleet.caches()[0]["metadata"]["uid"] == cache["metadata"]["uid"]
    assert fleet.roll(allow_source_change=True).name == "Completed"
    assert fleet.caches()[0]["metadata"]["uid"] != cache["metadata"]["uid"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "endpoint"),
        ({"endpoint": "Chat"}, "endpoint"),
        ({"endpoint": "chat", "replica": 2}, "replica"),
        ({"endpoint": "chat", "replicas": -1}, "replicas"),
        ({"endpoint": "chat", "nodes_per_task": 0}, "nodes_per_task"),
        ({"endpoint": "chat", "gate": {"mode": "Percentage", "value": 101}}, "gate"),
        ({"endpoint": "chat", "gate": {"on_deadline": "Wait"}}, "gate.on_deadline"),
    ],
)
def test_a_bad_parameter_is_refused_by_its_field(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        RollEndpoint(**given)
    assert [".".join(map(str, error["loc"])) for error in refused.value.errors()] == [field]


@pytest.mark.parametrize("model", [RollEndpoint, DeleteEndpoint, Gate])
def test_every_parameter_is_described_in_the_form(model: type[Parameters]) -> None:
    properties = model.model_json_schema()["properties"]
    assert [name for name, field in properties.items() if not field.get("description")] == []
