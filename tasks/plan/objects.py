"""The Kubernetes objects of caches and node Jobs, as dicts. Pure: the same input gives the same object."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tasks.plan.manifest import InvalidManifest, manifest_to_json
from tasks.plan.resources import Endpoint
from tasks.plan.schema import API_VERSION
from tasks.plan.types import Manifest, SourceKind

Object = dict[str, Any]

MANAGED = {"app.kubernetes.io/managed-by": "warmpath"}
ENDPOINT_LABEL = "warmpath.dev/endpoint"
CACHE_LABEL = "warmpath.dev/cache"
NVME_BYTES = "warmpath.dev/nvme-bytes"
NODE_IMAGE = "warmpath/node:0.1.0"
STORE_MOUNT = "/warmpath/node"
MANIFEST_MOUNT = "/warmpath/manifest"
MANIFEST_FILE = f"{MANIFEST_MOUNT}/manifest.json"
REPORT = "/dev/termination-log"
JOB_TTL_S = 300
# Exit status by which the node program says that another try cannot help.
TERMINAL = 2
# The API takes 1 MiB of data in a ConfigMap; the rest is room for its metadata.
MAX_MANIFEST_BYTES = 1_000_000
JOB_RETRIES = 3
# Written and owned by root on the node; pods only read it.
RUN_AS = 0


def engine_labels(endpoint: str) -> dict[str, str]:
    """The labels by which an endpoint's engine pods are found: its node Jobs carry the first too."""
    return {ENDPOINT_LABEL: endpoint, "warmpath.dev/role": "engine"}


def engine_selector(endpoint: str) -> str:
    return ",".join(f"{label}={value}" for label, value in engine_labels(endpoint).items())


def ready_label(cache_uid: str) -> str:
    """The node label that says: a verified copy of this cache is here."""
    return f"warmpath.dev/weights-cache-ready.{cache_uid}"


def job_name(endpoint: Endpoint, *parts: str) -> str:
    """A DNS label that reads like its parts and is the same only for the same work on the same store.

    The digest is always there: "chat" on "a-b" and "chat-a" on "b" read alike, and a Job found by name is adopted.
    """
    whole = "-".join(parts).lower().replace(".", "-").replace("_", "-")
    unique = "/".join((*parts, endpoint.host_path))
    return f"{whole[:52].rstrip('-')}-{hashlib.sha256(unique.encode()).hexdigest()[:10]}"


def short_digest(digest: str) -> str:
    """Twelve characters of a digest, for names."""
    return digest.rpartition(":")[2][:12]


def cache_name(endpoint: str, digest: str) -> str:
    return f"{endpoint}-{short_digest(digest)}"


def manifest_name(cache: str) -> str:
    return f"{cache}-manifest"


def cache_object(endpoint: Endpoint, manifest: Manifest) -> Object:
    """The ModelDataCacheConfig of one revision of one endpoint.

    It has no owner: copies on nodes outlive an endpoint that retains them, and are cleared before it goes otherwise.
    """
    name = cache_name(endpoint.name, manifest.digest)
    return {
        "apiVersion": API_VERSION,
        "kind": "ModelDataCacheConfig",
        "metadata": {
            "name": name,
            "namespace": endpoint.namespace,
            "labels": {**MANAGED, ENDPOINT_LABEL: endpoint.name},
        },
        "spec": {
            "enabled": endpoint.weights_cache,
            "endpoint": endpoint.name,
            "modelSourceConfig": dict(endpoint.source_config),
            "source": manifest.source.uri,
            "revision": manifest.revision,
            "digest": manifest.digest,
            "hostPath": endpoint.host_path,
            "sizeBytes": manifest.size_bytes,
            "files": len(manifest.files),
            "manifest": manifest_name(name),
        },
    }


def manifest_object(endpoint: Endpoint, manifest: Manifest, keeper: Object) -> Object:
    """The ConfigMap that carries the manifest to nodes and pods; it goes with `keeper`: its cache, or the endpoint."""
    cache = cache_name(endpoint.name, manifest.digest)
    text = manifest_to_json(manifest)
    if len(text.encode()) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(
            f"the manifest of {manifest.source.uri} has {len(text.encode())} bytes for {len(manifest.files)} files; "
            f"expected at most {MAX_MANIFEST_BYTES}. Leave files out with cachePolicy.source.exclude"
        )
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": manifest_name(cache),
            "namespace": endpoint.namespace,
            "labels": {**MANAGED, ENDPOINT_LABEL: endpoint.name, CACHE_LABEL: cache},
            "ownerReferences": [owner(keeper)],
        },
        "data": {"manifest.json": text},
    }


def owner(of: Mapping[str, Any]) -> Object:
    """An ownerReference: what it is on goes when `of` goes."""
    metadata = of["metadata"]
    return {"apiVersion": of["apiVersion"], "kind": of["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def fill_job(endpoint: Endpoint, cache: str, digest: str, node: Mapping[str, Any]) -> Object:
    """The Job that puts a revision on `node` (a Kubernetes Node)."""
    arguments = ["--manifest", MANIFEST_FILE]
    volume = {"name": "manifest", "configMap": {"name": manifest_name(cache)}}
    mount = {"name": "manifest", "mountPath": MANIFEST_MOUNT, "readOnly": True}
    name = job_name(endpoint, "fill", endpoint.name, short_digest(digest), node["metadata"]["name"])
    job = _node_job(endpoint, node, name, "fill", arguments, retries=JOB_RETRIES)
    pod = job["spec"]["template"]["spec"]
    pod["volumes"].append(volume)
    pod["containers"][0]["volumeMounts"].append(mount)
    pod["containers"][0] |= credentials(endpoint)
    mount_source(endpoint, pod, pod["containers"][0])
    job["metadata"]["labels"][CACHE_LABEL] = job["spec"]["template"]["metadata"]["labels"][CACHE_LABEL] = cache
    return job


def audit_job(endpoint: Endpoint, node: Mapping[str, Any]) -> Object:
    """The Job that tells what `node` holds and how much room it has."""
    name = job_name(endpoint, "audit", endpoint.name, node["metadata"]["name"])
    return _node_job(endpoint, node, name, "audit", [], retries=0)


def evict_job(endpoint: Endpoint, digest: str, node: Mapping[str, Any]) -> Object:
    """The Job that removes a revision from `node`."""
    name = job_name(endpoint, "evict", endpoint.name, short_digest(digest), node["metadata"]["name"])
    return _node_job(endpoint, node, name, "evict", ["--digest", digest], retries=JOB_RETRIES)


def credentials(endpoint: Endpoint) -> Object:
    """Where a container that fetches gets its credentials: from Secrets, by reference; {} where identity is enough."""
    fields: Object = {}
    if endpoint.credentials_secret:
        fields["envFrom"] = [{"secretRef": {"name": endpoint.credentials_secret}}]
    if endpoint.token_secret:
        key: Object = {"name": endpoint.token_secret, "key": endpoint.token_key}
        if endpoint.token_optional:
            key["optional"] = True
        fields["env"] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}]
    return fields


def identity(endpoint: Endpoint) -> Object:
    """The ServiceAccount of the pods that fetch, where it is what gives access to the source."""
    account = endpoint.kubernetes.service_account_name
    return {"serviceAccountName": account} if account else {}


def mount_source(endpoint: Endpoint, pod: Object, container: Object) -> None:
    """Add the mounted file system that the weights come from, read-only, at the path it has on the node."""
    if endpoint.source.kind is SourceKind.FILE:
        path = endpoint.source.uri.removeprefix("file://")
        # No type: a check that fails would also keep pods from starting on warm nodes, which need no source.
        pod["volumes"].append({"name": "source", "hostPath": {"path": path}})
        container["volumeMounts"].append({"name": "source", "mountPath": path, "readOnly": True})


def store_path(endpoint: Endpoint) -> str:
    """Directory of the store on a node."""
    return f"{endpoint.host_path.rstrip('/')}/warmpath"


def confined(*, writes_store: bool) -> Object:
    """securityContext of the node program: no capabilities, nothing to write but its mounts."""
    own = {"runAsUser": RUN_AS} if writes_store else {}
    return {
        **own,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _node_job(
    endpoint: Endpoint, node: Mapping[str, Any], name: str, verb: str, arguments: list[str], *, retries: int
) -> Object:
    metadata = node["metadata"]
    store = store_path(endpoint)
    limit = (metadata.get("annotations") or {}).get(NVME_BYTES)
    capacity = ["--capacity-bytes", limit] if limit else []
    if verb == "fill":
        # By its path the program sees whether a disk of its own is mounted there, or only the node's root disk.
        capacity += ["--host-path", store]
    if limit and verb == "fill":
        # Whoever set a limit on the node said by it that the store shares a disk, maybe the node's own.
        capacity.append("--allow-root-disk")
    labels = {**MANAGED, ENDPOINT_LABEL: endpoint.name, "warmpath.dev/job": verb}
    container = {
        "name": verb,
        "image": NODE_IMAGE,
        "command": ["python", "-m", "tasks.prefetch", verb],
        "args": ["--root", store, *arguments, *capacity, "--report", REPORT],
        "terminationMessagePath": REPORT,
        "securityContext": confined(writes_store=True),
        "volumeMounts": [{"name": "store", "mountPath": store}],
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "nodeSelector": {
            "kubernetes.io/hostname": (metadata.get("labels") or {}).get("kubernetes.io/hostname", metadata["name"])
        },
        # A copy on a node is worth having whatever its taints keep away.
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}, *map(dict, endpoint.tolerations)],
        "containers": [container],
        "volumes": [{"name": "store", "hostPath": {"path": store, "type": "DirectoryOrCreate"}}],
        **identity(endpoint),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": endpoint.namespace, "labels": dict(labels)},
        "spec": {
            "backoffLimit": retries,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [TERMINAL]}},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "ttlSecondsAfterFinished": JOB_TTL_S,
            "template": {"metadata": {"labels": dict(labels)}, "spec": pod},
        },
    }
