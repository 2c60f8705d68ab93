"""The Deployment and the Service of an endpoint, as dicts.

Every pod first runs `tasks.prefetch link`: on a warm node the model's directory becomes links into the node's store,
which is mounted read-only; on a cold one the weights are fetched from the source into the pod's own scratch volume.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.plan.objects import (
    CACHE_LABEL,
    ENDPOINT_LABEL,
    MANAGED,
    MANIFEST_FILE,
    MANIFEST_MOUNT,
    NODE_IMAGE,
    REPORT,
    STORE_MOUNT,
    Object,
    cache_name,
    confined,
    credentials,
    engine_labels,
    identity,
    manifest_name,
    mount_source,
    owner,
    ready_label,
    store_path,
)
from tasks.plan.policy import Placement
from tasks.plan.resources import Endpoint
from tasks.plan.schema import API_VERSION, KIND
from tasks.plan.types import Manifest

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
DIGEST_ANNOTATION = "warmpath.dev/manifest-digest"
PORT_NAME = "http"
SCRATCH_SLACK_BYTES = 256 << 20
# The router hears of a pod's end from the API; until it has, the pod must go on serving.
DRAIN_S = 5


def deployment_object(endpoint: Endpoint, manifest: Manifest, cache: Mapping[str, Any] | None, replicas: int) -> Object:
    """The Deployment that serves `manifest` from `cache` (None: no cache, every pod loads from the source).

    Rolls without losing capacity: a new pod is ready before an old one goes.
    """
    labels = {**MANAGED, ENDPOINT_LABEL: endpoint.name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": endpoint.name,
            "namespace": endpoint.namespace,
            "labels": labels,
            "annotations": {DIGEST_ANNOTATION: manifest.digest},
            "ownerReferences": _owned_by(endpoint),
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": engine_labels(endpoint.name)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": _template(endpoint, manifest, cache),
        },
    }


def service_object(endpoint: Endpoint) -> Object:
    """The Service whose EndpointSlices tell the router who is ready."""
    port = endpoint.worker.model_invocation_port.container_port
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": endpoint.name,
            "namespace": endpoint.namespace,
            "labels": {**MANAGED, ENDPOINT_LABEL: endpoint.name},
            "ownerReferences": _owned_by(endpoint),
        },
        "spec": {
            "selector": engine_labels(endpoint.name),
            "ports": [{"name": PORT_NAME, "port": port, "targetPort": port}],
        },
    }


def node_selection(endpoint: Endpoint) -> list[Object]:
    """Required node terms: the endpoint's instance types, within its own affinity."""
    required = (endpoint.node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get(
        "nodeSelectorTerms"
    ) or []
    if not endpoint.instance_types:
        return list(required)
    types = {"key": INSTANCE_TYPE, "operator": "In", "values": list(endpoint.instance_types)}
    return [{**term, "matchExpressions": [*(term.get("matchExpressions") or []), types]} for term in (required or [{}])]


def _owned_by(endpoint: Endpoint) -> list[Object]:
    metadata = {"name": endpoint.name, "uid": endpoint.uid}
    return [owner({"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata})] if endpoint.uid else []


def _template(endpoint: Endpoint, manifest: Manifest, cache: Mapping[str, Any] | None) -> Object:
    name = cache["metadata"]["name"] if cache else ""
    labels = {**MANAGED, **engine_labels(endpoint.name)}
    return {
        "metadata": {
            "labels": {**labels, **({CACHE_LABEL: name} if name else {})},
            "annotations": {DIGEST_ANNOTATION: manifest.digest},
        },
        "spec": _pod(endpoint, manifest, cache),
    }


def _pod(endpoint: Endpoint, manifest: Manifest, cache: Mapping[str, Any] | None) -> Object:
    volume = endpoint.worker.model_volume_mount
    configmap = manifest_name(cache_name(endpoint.name, manifest.digest))
    additions = endpoint.kubernetes
    # Without a cache nobody keeps a copy that lies on the node by chance, so a pod must not read one.
    store = {"hostPath": {"path": store_path(endpoint), "type": "DirectoryOrCreate"}} if cache else {"emptyDir": {}}
    pod: Object = {
        "automountServiceAccountToken": False,
        **identity(endpoint),
        **({"schedulerName": additions.scheduler_name} if additions.scheduler_name else {}),
        "tolerations": [dict(toleration) for toleration in endpoint.tolerations],
        "affinity": _affinity(endpoint, cache),
        "containers": [_engine(endpoint)],
        "volumes": [
            # Without a limit, weights on a cold node could fill the node's own disk and evict its neighbours.
            {"name": volume.name, "emptyDir": {"sizeLimit": str(manifest.size_bytes + SCRATCH_SLACK_BYTES)}},
            {"name": "warmpath-store", **store},
            {"name": "warmpath-manifest", "configMap": {"name": configmap}},
            *map(dict, additions.volumes),
        ],
    }
    pod["initContainers"] = [_link(endpoint, pod), *map(dict, additions.init_containers)]
    return pod


def _link(endpoint: Endpoint, pod: Object) -> Object:
    volume = endpoint.worker.model_volume_mount
    container = {
        "name": "weights",
        "image": NODE_IMAGE,
        "command": ["python", "-m", "tasks.prefetch", "link"],
        "args": [
            *("--root", STORE_MOUNT, "--manifest", MANIFEST_FILE, "--into", volume.mount_path),
            *("--scratch-ok", "--report", REPORT),
        ],
        "terminationMessagePath": REPORT,
        "securityContext": confined(writes_store=False),
        "volumeMounts": [
            {"name": volume.name, "mountPath": volume.mount_path},
            {"name": "warmpath-store", "mountPath": STORE_MOUNT, "readOnly": True},
            {"name": "warmpath-manifest", "mountPath": MANIFEST_MOUNT, "readOnly": True},
        ],
        **credentials(endpoint),
    }
    mount_source(endpoint, pod, container)
    return container


def _engine(endpoint: Endpoint) -> Object:
    worker = endpoint.worker
    volume, port = worker.model_volume_mount, worker.model_invocation_port.container_port
    ready = {"httpGet": {"path": "/health", "port": port}, "periodSeconds": 1, "timeoutSeconds": 5}
    own = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    variables = [dict(variable) for variable in worker.environment_variables]
    probes = {
        "readinessProbe": worker.probes.readiness_probe or ready,
        "livenessProbe": worker.probes.liveness_probe,
        "startupProbe": worker.probes.startup_probe,
    }
    optional = {"command": list(worker.command), "args": list(worker.args), "workingDir": worker.working_dir, **probes}
    return {
        "name": "engine",
        "image": worker.image,
        "env": [*([] if any(v["name"] == "POD_IP" for v in variables) else [own]), *variables],
        "ports": [{"name": PORT_NAME, "containerPort": port}],
        "resources": worker.resources,
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN_S}}},
        # The links in the model's directory lead into the store, so the engine sees it under the same path.
        "volumeMounts": [
            {"name": volume.name, "mountPath": volume.mount_path, "readOnly": True},
            {"name": "warmpath-store", "mountPath": STORE_MOUNT, "readOnly": True},
        ],
        **{field: value for field, value in optional.items() if value},
    }


def _types_in_order(endpoint: Endpoint) -> list[Object]:
    """instanceTypes is an order of preference; a warm node of any of them still comes first."""
    types = endpoint.instance_types if len(endpoint.instance_types) > 1 else ()
    weights = range(len(types), 0, -1)
    return [
        {
            "weight": min(weight, 50),
            "preference": {"matchExpressions": [{"key": INSTANCE_TYPE, "operator": "In", "values": [name]}]},
        }
        for name, weight in zip(types, weights, strict=True)
    ]


def _affinity(endpoint: Endpoint, cache: Mapping[str, Any] | None) -> Object:
    """Where pods may run, and that they like warm nodes best (or, with Required, accept no others)."""
    terms = node_selection(endpoint)
    preferred = list(endpoint.node_affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or [])
    preferred += _types_in_order(endpoint)
    if cache:
        warm = {"key": ready_label(cache["metadata"]["uid"]), "operator": "In", "values": ["true"]}
        if endpoint.placement is Placement.REQUIRED:
            terms = [
                {**term, "matchExpressions": [*(term.get("matchExpressions") or []), warm]} for term in (terms or [{}])
            ]
        else:
            preferred.append({"weight": 100, "preference": {"matchExpressions": [warm]}})
    affinity: Object = {}
    if terms:
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    if preferred:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = preferred
    return {"nodeAffinity": affinity} if affinity else {}
