from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.cluster.admission import check_identity, check_object, with_defaults
from infra.local.cluster.scheduler import may_run_on
from tasks.plan.manifest import InvalidManifest, manifest_from_json
from tasks.plan.objects import (
    audit_job,
    cache_name,
    cache_object,
    evict_job,
    fill_job,
    manifest_object,
    ready_label,
)
from tasks.plan.resources import Endpoint
from tasks.plan.types import Manifest

Endpoints = Callable[..., Endpoint]
Manifests = Callable[..., Manifest]
DIGEST = "sha256:" + "0123456789ab" + "c" * 52
Object = dict[str, Any]


def kube_node(name: str = "n1", **annotations: str) -> Object:
    told = {f"warmpath.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"metadata": {"name": name, "uid": "u", "labels": {"kubernetes.io/hostname": name}, "annotations": told}}


def jobs_of(endpoint: Endpoint, node: Object) -> list[Object]:
    cache = cache_name(endpoint.name, DIGEST)
    return [
        fill_job(endpoint, cache, DIGEST, node),
        audit_job(endpoint, node),
        evict_job(endpoint, DIGEST, node),
    ]


def container_of(job: Object) -> Object:
    (container,) = job["spec"]["template"]["spec"]["containers"]
    found: Object = container
    return found


def accepted(obj: Object) -> Object:
    """The object as the API would store it; fails where the API would refuse."""
    stored = with_defaults({**obj, "metadata": {**obj["metadata"], "uid": "u"}})
    check_identity(stored)
    check_object(stored, None, len(json.dumps(stored)))
    return stored


def test_the_label_of_readiness_names_the_cache() -> None:
    uid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    assert ready_label(uid) == f"warmpath.dev/weights-cache-ready.{uid}"
    assert len(ready_label(uid).partition("/")[2]) <= 63


def test_the_cache_says_what_it_holds_in_aws_fields_and_ours(endpoint: Endpoints, manifest: Manifests) -> None:
    wanted = manifest()
    cache = accepted(cache_object(endpoint(), wanted))
    assert cache["metadata"]["name"] == f"chat-{wanted.digest[7:19]}"
    assert cache["metadata"]["labels"]["warmpath.dev/endpoint"] == "chat"
    assert cache["spec"]["modelSourceConfig"]["s3Storage"] == {"bucketName": "models", "region": "us-east-1"}
    assert (cache["spec"]["digest"], cache["spec"]["sizeBytes"], cache["spec"]["files"]) == (
        wanted.digest,
        4 * 10**9,
        4,
    )
    assert cache["spec"]["hostPath"] == "/opt/dlami/nvme"


def test_the_manifest_travels_whole_and_goes_with_its_cache(endpoint: Endpoints, manifest: Manifests) -> None:
    wanted = manifest()
    cache = accepted(cache_object(endpoint(), wanted))
    found = accepted(manifest_object(endpoint(), wanted, cache))
    assert found["metadata"]["name"] == f"{cache['metadata']['name']}-manifest"
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert manifest_from_json(found["data"]["manifest.json"]) == wanted


def test_a_manifest_too_large_for_a_configmap_is_refused_with_what_to_do(
    endpoint: Endpoints, manifest: Manifests
) -> None:
    huge = manifest({f"{n:05}-{'x' * 200}": (1, "etag:1") for n in range(4000)})
    with pytest.raises(InvalidManifest, match=r"4000 files; expected at most 1000000.*exclude"):
        manifest_object(endpoint(), huge, {"apiVersion": "v1", "kind": "X", "metadata": {"name": "x", "uid": "u"}})


def test_a_fill_runs_the_node_program_on_its_node_with_the_limit_of_that_node(endpoint: Endpoints) -> None:
    job = accepted(fill_job(endpoint(), "chat-1", DIGEST, kube_node("n7", nvme_bytes="5000")))
    pod, container = job["spec"]["template"]["spec"], container_of(job)
    assert pod["nodeSelector"] == {"kubernetes.io/hostname": "n7"}
    assert container["command"] == ["python", "-m", "tasks.prefetch", "fill"]
    assert container["args"] == [
        *("--root", "/opt/dlami/nvme/warmpath", "--manifest", "/warmpath/manifest/manifest.json"),
        *("--capacity-bytes", "5000", "--host-path", "/opt/dlami/nvme/warmpath", "--allow-root-disk"),
        *("--report", "/dev/termination-log"),
    ]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["store"]["hostPath"] == {"path": "/opt/dlami/nvme/warmpath", "type": "DirectoryOrCreate"}
    assert volumes["manifest"]["configMap"] == {"name": "chat-1-manifest"}
    assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]} == {
        "store": "/opt/dlami/nvme/warmpath",
        "manifest": "/warmpath/manifest",
    }


def test_without_a_limit_the_store_may_have_the_disk_but_never_the_root_disk(endpoint: Endpoints) -> None:
    arguments = container_of(fill_job(endpoint(), "chat-1", DIGEST, kube_node()))["args"]
    assert "--capacity-bytes" not in arguments
    assert "--allow-root-disk" not in arguments
    assert arguments[arguments.index("--host-path") + 1] == "/opt/dlami/nvme/warmpath"


def test_audit_and_evict_get_no_credentials_and_no_manifest(endpoint: Endpoints) -> None:
    _, audit, evict = jobs_of(endpoint(), kube_node(nvme_bytes="5000"))
    for job in (accepted(audit), accepted(evict)):
        assert "envFrom" not in container_of(job)
        assert [volume["name"] for volume in job["spec"]["template"]["spec"]["volumes"]] == ["store"]
    assert container_of(evict)["args"][2:4] == ["--digest", DIGEST]
    assert "--capacity-bytes" in container_of(audit)["args"]


def test_credentials_are_references_never_values(endpoint: Endpoints) -> None:
    container = container_of(fill_job(endpoint(), "chat-1", DIGEST, kube_node()))
    assert container["envFrom"] == [{"secretRef": {"name": "model-source"}}]
    model = {"modelId": "meta/llama", "tokenSecretRef": {"name": "hub", "key": "token"}}
    gated = endpoint(
        {
            "spec.modelSourceConfig": {"modelSourceType": "huggingface", "huggingFaceModel": model},
            "spec.cachePolicy.source": {},
        }
    )
    reference = {"secretKeyRef": {"name": "hub", "key": "token"}}
    found = container_of(fill_job(gated, "chat-1", DIGEST, kube_node()))
    assert found["env"] == [{"name": "HF_TOKEN", "valueFrom": reference}]
    assert "envFrom" not in found


def test_a_mounted_source_is_seen_read_only_at_its_own_path(endpoint: Endpoints) -> None:
    source = {"modelSourceType": "fsx", "modelLocation": "llama", "fsxStorage": {"fileSystemId": "fs-1"}}
    mine = endpoint({"spec.modelSourceConfig": source, "spec.cachePolicy.source": {"mountedPath": "/fsx"}})
    job = fill_job(mine, "chat-1", DIGEST, kube_node())
    mount = {m["name"]: m for m in container_of(job)["volumeMounts"]}["source"]
    assert mount == {"name": "source", "mountPath": "/fsx/llama", "readOnly": True}


def test_a_job_has_no_rights_beyond_its_mounts(endpoint: Endpoints) -> None:
    for job in jobs_of(endpoint(), kube_node()):
        context = container_of(job)["securityContext"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert job["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
        assert "privileged" not in json.dumps(job)


def test_a_terminal_failure_is_not_tried_again(endpoint: Endpoints) -> None:
    job = fill_job(endpoint(), "chat-1", DIGEST, kube_node())
    assert job["spec"]["podFailurePolicy"]["rules"][0] == {
        "action": "FailJob",
        "onExitCodes": {"operator": "In", "values": [2]},
    }
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["backoffLimit"] > 0


@pytest.mark.parametrize("taint", [("nvidia.com/gpu", "present", "NoSchedule"), ("any", "", "NoSchedule")])
def test_jobs_reach_nodes_whose_taints_keep_others_away(endpoint: Endpoints, taint: tuple[str, str, str]) -> None:
    """Pain 27 of download Jobs: no toleration for tainted GPU nodes."""
    key, value, effect = taint
    node = {
        **kube_node(),
        "spec": {"taints": [{"key": key, "value": value, "effect": effect}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    for job in jobs_of(endpoint(), node):
        assert may_run_on(job["spec"]["template"], node) == ""


def test_the_service_of_an_endpoint_never_selects_a_job(endpoint: Endpoints) -> None:
    for job in jobs_of(endpoint(), kube_node()):
        assert "warmpath.dev/role" not in job["spec"]["template"]["metadata"]["labels"]


def test_an_identity_that_opens_the_source_is_given_to_jobs(endpoint: Endpoints) -> None:
    mine = endpoint({"spec.kubernetes": {"serviceAccountName": "s3-reader"}})
    job = fill_job(mine, "chat-1", DIGEST, kube_node())
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "s3-reader"


labels = st.from_regex(r"[a-z]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
hosts = st.lists(st.from_regex(r"[a-z0-9]{1,40}", fullmatch=True), min_size=1, max_size=5).map(".".join)


@given(labels, hosts)
def test_the_name_of_a_job_is_a_label_and_the_same_for_the_same_work(endpoint: Endpoints, name: str, host: str) -> None:
    mine = endpoint({"metadata.name": name})
    for job, again in zip(jobs_of(mine, kube_node(host)), jobs_of(mine, kube_node(host)), strict=True):
        assert job == again
        assert len(job["metadata"]["name"]) <= 63
        accepted(job)


@given(st.lists(hosts, min_size=2, max_size=2, unique=True))
def test_two_nodes_never_share_a_job(endpoint: Endpoints, found: list[str]) -> None:
    one, other = (audit_job(endpoint(), kube_node(host))["metadata"]["name"] for host in found)
    assert one != other


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (({}, "a-b"), ({}, "a.b")),
        (({}, "a-b"), ({"metadata.name": "chat-a"}, "b")),
        (({}, "a"), ({"spec.modelCacheConfig.weightsCache": {"enabled": True, "hostPath": "/mnt"}}, "a")),
    ],
)
def test_different_work_never_shares_a_job_however_alike_its_names_read(
    endpoint: Endpoints, one: tuple[Object, str], other: tuple[Object, str]
) -> None:
    """A run adopts a Job that it finds by name: a shared name would take another's report for its own."""
    names = [audit_job(endpoint(changes), kube_node(host))["metadata"]["name"] for changes, host in (one, other)]
    assert names[0] != names[1]
