from __future__ import annotations

from typing import Any

import pytest
from prefect import State

from flows.delete_endpoint import delete_endpoint
from flows.parameters import DeleteEndpoint
from tests.flows.fleet import Fleet

pytestmark = pytest.mark.prefect


def delete(**parameters: Any) -> State[Any]:
    return delete_endpoint(DeleteEndpoint(endpoint="chat", **parameters), return_state=True)


def exists(fleet: Fleet) -> bool:
    return bool(fleet.kube.list("InferenceEndpointConfig", "default", fields="metadata.name=chat").items)


def test_a_deletion_is_only_told_unless_it_is_meant(fleet: Fleet) -> None:
    fleet.roll()
    (cache,), pods = fleet.caches(), fleet.serving()
    state = delete()
    assert state.name == "Planned"
    assert f"delete cache {cache['metadata']['name']}" in str(state.message)
    assert (fleet.serving(), exists(fleet), len(fleet.caches())) == (pods, True, 1)


def test_a_deletion_leaves_nothing_in_the_cluster_or_on_disks(fleet: Fleet) -> None:
    fleet.roll()
    (cache,) = fleet.caches()
    assert delete(dry_run=False).is_completed()
    assert not exists(fleet)
    for kind in ("Deployment", "Service", "ModelDataCacheConfig", "ConfigMap", "Lease"):
        assert fleet.kube.list(kind, "default").items == [], kind
    assert fleet.labelled(cache) == []
    assert fleet.trees("node-1") == fleet.trees("node-2") == {}
    fleet.until(lambda: not fleet.kube.list("Pod", "default", labels="warmpath.dev/role=engine").items)


def test_retained_copies_are_found_again_by_a_later_endpoint(fleet: Fleet) -> None:
    fleet.roll()
    (cache,) = fleet.caches()
    assert delete(dry_run=False, retain_cache=True).is_completed()
    assert not exists(fleet)
    assert fleet.labelled(cache) == ["node-1", "node-2"]
    fleet.apply()
    assert fleet.roll().name == "Completed"
    assert fleet.status()["rollout"]["nodesFilled"] == 0


def test_copies_that_another_endpoint_serves_stay(fleet: Fleet) -> None:
    fleet.roll()
    twin = fleet.endpoint()
    metadata = {"name": "twin", "namespace": "default"}
    fleet.kube.create({key: twin[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": metadata})
    assert fleet.roll(endpoint="twin").name == "Completed"
    assert delete(dry_run=False).is_completed()
    (cache,) = fleet.caches()
    assert cache["spec"]["endpoint"] == "twin"
    assert fleet.labelled(cache) == ["node-1", "node-2"]
    assert len(fleet.trees("node-1")) == len(fleet.trees("node-2")) == 1
