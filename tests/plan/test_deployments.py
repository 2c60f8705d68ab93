from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from infra.local.cluster.admission import check_identity, check_object, with_defaults
from infra.local.cluster.scheduler import place_all
from infra.local.cluster.selectors import match_selector
from tasks.plan.deployments import deployment_object, service_object
from tasks.plan.objects import cache_object, ready_label
from tasks.plan.resources import Endpoint
from tasks.plan.types import Manifest

Endpoints = Callable[..., Endpoint]
Manifests = Callable[..., Manifest]
Object = dict[str, Any]
CACHE_UID = "0f8fad5b-d9cb-469f-a165-70867728950e"
READY = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "2", "pods": "10"}}


def cache_of(endpoint: Endpoint, manifest: Manifest) -> Object:
    cache = cache_object(endpoint, manifest)
    return {**cache, "metadata": {**cache["metadata"], "uid": CACHE_UID}}


def deployment(endpoint: Endpoint, manifest: Manifest, replicas: int = 3) -> Object:
    return deployment_object(endpoint, manifest, cache_of(endpoint, manifest), replicas)


def pod_of(deployment: Object) -> Object:
    spec: Object = deployment["spec"]["template"]["spec"]
    return spec


def kube_node(name: str, *, kind: str = "ml.local", warm: bool = False) -> Object:
    labels = {"node.kubernetes.io/instance-type": kind, "kubernetes.io/hostname": name}
    return {
        "metadata": {"name": name, "labels": {**labels, **({ready_label(CACHE_UID): "true"} if warm else {})}},
        "spec": {},
        "status": READY,
    }


def placed(deployment: Object, nodes: list[Object], count: int = 1) -> list[str]:
    pods = [{"metadata": {"name": f"p{n}"}, "spec": pod_of(deployment)} for n in range(count)]
    return [placement.node for placement in place_all(pods, nodes, [])]


def test_the_api_takes_both_objects(endpoint: Endpoints, manifest: Manifests) -> None:
    for obj in (deployment(endpoint(), manifest()), service_object(endpoint())):
        stored = with_defaults({**obj, "metadata": {**obj["metadata"], "uid": "u"}})
        check_identity(stored)
        check_object(stored, None, len(json.dumps(stored)))
        assert stored["metadata"]["ownerReferences"][0]["uid"] == "iec-1"


def test_a_warm_node_is_preferred_and_a_cold_one_still_takes_a_pod(endpoint: Endpoints, manifest: Manifests) -> None:
    found = deployment(endpoint(), manifest())
    assert placed(found, [kube_node("a"), kube_node("b", warm=True)]) == ["b"]
    assert placed(found, [kube_node("a")]) == ["a"]
    assert placed(found, [kube_node("a"), kube_node("b", warm=True)], count=3) == ["b", "b", "a"]


def test_with_required_placement_no_pod_starts_cold(endpoint: Endpoints, manifest: Manifests) -> None:
    found = deployment(endpoint({"spec.cachePolicy.placement": "Required"}), manifest())
    assert placed(found, [kube_node("a")]) == [""]
    assert placed(found, [kube_node("a"), kube_node("b", warm=True)]) == ["b"]
    assert placed(found, [kube_node("b", kind="ml.p5", warm=True)]) == [""]


def test_instance_types_are_an_order_but_warmth_comes_first(endpoint: Endpoints, manifest: Manifests) -> None:
    found = deployment(endpoint({"spec.instanceType": "", "spec.instanceTypes": ["ml.p5", "ml.g5"]}), manifest())
    first, second = kube_node("z", kind="ml.p5"), kube_node("a", kind="ml.g5")
    assert placed(found, [second, first]) == ["z"]
    assert placed(found, [first, kube_node("a", kind="ml.g5", warm=True)]) == ["a"]
    assert placed(found, [kube_node("x", kind="ml.other", warm=True)]) == [""]


def test_the_engine_reads_its_weights_where_it_expects_them_and_changes_nothing(
    endpoint: Endpoints, manifest: Manifests
) -> None:
    pod = pod_of(deployment(endpoint(), manifest()))
    (weights,), (engine,) = pod["initContainers"], pod["containers"]
    assert weights["command"] == ["python", "-m", "tasks.prefetch", "link"]
    assert weights["args"] == [
        *("--root", "/warmpath/node", "--manifest", "/warmpath/manifest/manifest.json"),
        *("--into", "/opt/ml/model", "--scratch-ok", "--report", "/dev/termination-log"),
    ]
    assert all(mount["readOnly"] for mount in engine["volumeMounts"])
    assert {m["mountPath"] for m in engine["volumeMounts"]} == {"/opt/ml/model", "/warmpath/node"}
    assert next(m for m in weights["volumeMounts"] if m["mountPath"] == "/warmpath/node")["readOnly"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["warmpath-store"]["hostPath"]["path"] == "/opt/dlami/nvme/warmpath"
    assert engine["command"] == ["python", "-m", "infra.local.engines.llama"]
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in engine["env"]


def test_scratch_on_a_cold_node_is_bounded_by_the_model(endpoint: Endpoints, manifest: Manifests) -> None:
    """Pain 35: an emptyDir without a limit fills the node's disk and evicts its neighbours."""
    wanted = manifest()
    volumes = {volume["name"]: volume for volume in pod_of(deployment(endpoint(), wanted))["volumes"]}
    limit = int(volumes["model-weights"]["emptyDir"]["sizeLimit"])
    assert wanted.size_bytes < limit < 1.2 * wanted.size_bytes


def test_credentials_of_the_source_reach_the_init_step_and_never_the_engine(
    endpoint: Endpoints, manifest: Manifests
) -> None:
    pod = pod_of(deployment(endpoint(), manifest()))
    assert pod["initContainers"][0]["envFrom"] == [{"secretRef": {"name": "model-source"}}]
    assert "envFrom" not in pod["containers"][0]


def test_no_capacity_is_lost_while_it_rolls(endpoint: Endpoints, manifest: Manifests) -> None:
    found = deployment(endpoint(), manifest(), replicas=7)
    assert found["spec"]["replicas"] == 7
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert pod_of(found)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"] > 0


def test_another_revision_is_another_template_and_the_same_selector(endpoint: Endpoints, manifest: Manifests) -> None:
    one = deployment(endpoint(), manifest())
    other = deployment(endpoint(), manifest({"a": (1, "etag:9")}))
    assert one["spec"]["template"] != other["spec"]["template"]
    assert one["spec"]["selector"] == other["spec"]["selector"]
    assert one == deployment(endpoint(), manifest())


def test_the_service_selects_the_engines(endpoint: Endpoints, manifest: Manifests) -> None:
    labels = deployment(endpoint(), manifest())["spec"]["template"]["metadata"]["labels"]
    assert match_selector({"matchLabels": service_object(endpoint())["spec"]["selector"]}, labels)
    assert service_object(endpoint())["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": 8000}]


def test_a_users_own_probes_variables_and_additions_are_kept(endpoint: Endpoints, manifest: Manifests) -> None:
    mine = endpoint(
        {
            "spec.worker.probes": {"livenessProbe": {"httpGet": {"path": "/live", "port": 8000}}},
            "spec.worker.environmentVariables": [{"name": "POD_IP", "value": "0.0.0.0"}],  # noqa: S104
            "spec.kubernetes": {
                "initContainers": [{"name": "mine", "image": "x"}],
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                "schedulerName": "volcano",
                "serviceAccountName": "s3-reader",
            },
        }
    )
    pod = pod_of(deployment(mine, manifest()))
    engine = pod["containers"][0]
    assert engine["livenessProbe"]["httpGet"]["path"] == "/live"
    assert engine["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert engine["env"] == [{"name": "POD_IP", "value": "0.0.0.0"}]  # noqa: S104
    assert [container["name"] for container in pod["initContainers"]] == ["weights", "mine"]
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod["volumes"]
    assert (pod["schedulerName"], pod["serviceAccountName"]) == ("volcano", "s3-reader")


def test_without_a_cache_pods_prefer_nobody(endpoint: Endpoints, manifest: Manifests) -> None:
    found = deployment_object(endpoint(), manifest(), None, 1)
    assert "preferredDuringSchedulingIgnoredDuringExecution" not in pod_of(found)["affinity"]["nodeAffinity"]
    assert "warmpath.dev/cache" not in found["spec"]["template"]["metadata"]["labels"]


def test_without_a_cache_no_pod_reads_the_nodes_store(endpoint: Endpoints, manifest: Manifests) -> None:
    without = pod_of(deployment_object(endpoint(), manifest(), None, 1))
    assert [volume for volume in without["volumes"] if "hostPath" in volume] == []
    assert any("hostPath" in volume for volume in pod_of(deployment(endpoint(), manifest()))["volumes"])
