"""What the API does to an object before it is stored: defaults, and the refusals worth having on a laptop too."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from infra.local.cluster.objects import CLUSTER_SCOPED, MALFORMED, Object
from infra.local.cluster.scheduler import place
from infra.local.cluster.selectors import match_selector

# Pods are placed on it for trial, so that one that the scheduler cannot read is refused at once.
_SOME_NODE: Object = {
    "metadata": {"name": "some", "labels": {}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}

MAX_OBJECT_BYTES = 1_572_864
MAX_DATA_BYTES = 1_048_576
MAX_ANNOTATION_BYTES = 262_144


class Refused(Exception):
    """The API would not accept the object; the message names the field."""


_SUBDOMAIN = re.compile(r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$")
_DNS_LABEL = re.compile(r"^[a-z]([a-z0-9-]*[a-z0-9])?$")
_LABEL_NAME = re.compile(r"^[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?$")
_POD_TEMPLATE_KINDS = ("Deployment", "ReplicaSet", "DaemonSet", "Job")

# What may change in the spec of a pod that exists. nodeName may be set once: that is how a pod is bound.
_MUTABLE_POD_FIELDS = frozenset({"tolerations", "activeDeadlineSeconds", "terminationGracePeriodSeconds", "containers"})


def check_identity(obj: Object) -> None:
    """Refused unless apiVersion, kind, name, labels and annotations are as Kubernetes wants them."""
    for part in ("apiVersion", "kind"):
        if not isinstance(obj.get(part), str) or not obj[part]:
            raise Refused(f"{part} is missing")
    metadata = obj["metadata"]
    name = metadata["name"]
    pattern, length = (_DNS_LABEL, 63) if obj["kind"] == "Service" else (_SUBDOMAIN, 253)
    if not pattern.match(name) or len(name) > length or ".." in name:
        raise Refused(
            f'metadata.name "{name}" must be lower-case letters, digits and "-" '
            f"(not first or last), at most {length} characters"
        )
    for key, value in (metadata.get("labels") or {}).items():
        _check_label(key, value)
    annotations = metadata.get("annotations") or {}
    for key, value in annotations.items():
        if not isinstance(value, str):
            raise Refused(f"metadata.annotations[{key}] is {value!r}: annotations are strings")
    if sum(len(key) + len(value) for key, value in annotations.items()) > MAX_ANNOTATION_BYTES:
        raise Refused(f"metadata.annotations are larger than {MAX_ANNOTATION_BYTES} bytes")


def with_defaults(obj: Object) -> Object:
    """`obj` with the defaults of the API. Pure and idempotent; needs metadata.uid."""
    match obj["kind"]:
        case "Pod":
            return {**obj, "spec": _pod_spec(obj.get("spec") or {})}
        case "Deployment":
            return {**obj, "spec": _deployment_spec(obj)}
        case "ReplicaSet":
            return {**obj, "spec": {"replicas": 1} | _templated(obj)}
        case "DaemonSet":
            return {**obj, "spec": {"updateStrategy": {"type": "RollingUpdate"}} | _templated(obj)}
        case "Job":
            return {**obj, "spec": _job_spec(obj)}
        case "Service":
            return {**obj, "spec": _service_spec(obj.get("spec") or {})}
        case "Secret":
            return _secret(obj)
    return obj


def check_object(obj: Object, old: Object | None, size_bytes: int) -> None:
    """Refused for what the API would refuse with Invalid."""
    if size_bytes > MAX_OBJECT_BYTES:
        raise Refused(f"it has {size_bytes} bytes, the limit is {MAX_OBJECT_BYTES}")
    kind, spec = obj["kind"], obj.get("spec") or {}
    if kind in ("ConfigMap", "Secret"):
        _check_data(obj)
    if kind in _POD_TEMPLATE_KINDS:
        _check_workload(kind, spec)
    if kind == "Pod":
        _check_pod_spec(spec, "spec")
    if kind == "Node":
        _check_taints(spec.get("taints") or [])
    if old is not None:
        _check_unchanged(kind, old.get("spec") or {}, spec)


def check_namespace(kind: str, namespace: str) -> str:
    """The namespace in which `kind` lives: "" for cluster-scoped kinds, "default" where none is named."""
    if kind in CLUSTER_SCOPED:
        return ""
    return namespace or "default"


def _pod_spec(spec: Object) -> Object:
    return {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30} | spec


def _templated(obj: Object) -> Object:
    spec: Object = dict(obj.get("spec") or {})
    if isinstance(spec.get("template"), dict):
        spec["template"] = {**spec["template"], "spec": _pod_spec(spec["template"].get("spec") or {})}
    return spec


def _deployment_spec(obj: Object) -> Object:
    spec: Object = {"replicas": 1, "revisionHistoryLimit": 10, "progressDeadlineSeconds": 600, **_templated(obj)}
    strategy: Object = {"type": "RollingUpdate", **(spec.get("strategy") or {})}
    if strategy["type"] == "RollingUpdate":
        rolling = {"maxSurge": "25%", "maxUnavailable": "25%"} | (strategy.get("rollingUpdate") or {})
        strategy["rollingUpdate"] = rolling
    return {**spec, "strategy": strategy}


def _job_spec(obj: Object) -> Object:
    spec: Object = {"backoffLimit": 6, "completions": 1, "parallelism": 1, **_templated(obj)}
    uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
    template: Object = spec.get("template") or {}
    metadata: Object = template.get("metadata") or {}
    identity = {"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name}
    labels = (metadata.get("labels") or {}) | identity | {"controller-uid": uid, "job-name": name}
    selector = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    return {"selector": selector} | spec | {"template": {**template, "metadata": {**metadata, "labels": labels}}}


def _service_spec(spec: Object) -> Object:
    ports = [{"protocol": "TCP", "targetPort": port.get("port")} | port for port in spec.get("ports") or ()]
    return {"type": "ClusterIP"} | spec | ({"ports": ports} if ports else {})


def _secret(obj: Object) -> Object:
    """`stringData` is for writing only: what is stored is base64 in `data`."""
    plain = {key: base64.b64encode(text.encode()).decode() for key, text in (obj.get("stringData") or {}).items()}
    rest = {key: value for key, value in obj.items() if key != "stringData"}
    data = (obj.get("data") or {}) | plain
    return {"type": "Opaque"} | rest | ({"data": data} if data else {})


def _check_label(key: str, value: Any) -> None:
    prefix, slash, name = key.rpartition("/")
    if (slash and (not _SUBDOMAIN.match(prefix) or len(prefix) > 253)) or not _LABEL_NAME.match(name) or len(name) > 63:
        raise Refused(f'label key "{key}" must be [prefix/]name, the name at most 63 letters, digits, "-", "_", "."')
    if not isinstance(value, str) or len(value) > 63 or (value and not _LABEL_NAME.match(value)):
        raise Refused(f'label "{key}" is {value!r}: at most 63 letters, digits, "-", "_", "."')


def _check_data(obj: Object) -> None:
    data = obj.get("data") or {}
    for key, value in data.items():
        if not isinstance(value, str):
            raise Refused(f"data[{key}] is {type(value).__name__}: values are strings")
        if obj["kind"] == "Secret":
            try:
                base64.b64decode(value, validate=True)
            except binascii.Error:
                raise Refused(f"data[{key}] is not base64: use stringData for plain text") from None
    if sum(len(value) for value in data.values()) > MAX_DATA_BYTES:
        raise Refused(f"data is larger than {MAX_DATA_BYTES} bytes")


def _check_workload(kind: str, spec: Object) -> None:
    template = spec.get("template") or {}
    if not template.get("spec"):
        raise Refused("spec.template.spec is missing")
    _check_pod_spec(template["spec"], "spec.template.spec")
    policy = template["spec"].get("restartPolicy")
    if kind == "Job":
        if policy not in ("Never", "OnFailure"):
            raise Refused(f'spec.template.spec.restartPolicy is "{policy}": a Job needs Never or OnFailure')
        return
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not spec.get("selector") or not match_selector(spec["selector"], labels):
        raise Refused("spec.selector must match spec.template.metadata.labels")
    if policy != "Always":
        raise Refused(f'spec.template.spec.restartPolicy is "{policy}": a {kind} needs Always')
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int) or replicas < 0:
        raise Refused(f"spec.replicas is {replicas!r}: it must be 0 or more")


def _check_pod_spec(pod_spec: Object, where: str) -> None:
    policy = pod_spec.get("restartPolicy")
    if policy not in ("Always", "OnFailure", "Never"):
        raise Refused(f'{where}.restartPolicy is "{policy}": use Always, OnFailure or Never')
    containers = [*(pod_spec.get("initContainers") or ()), *(pod_spec.get("containers") or ())]
    if not pod_spec.get("containers"):
        raise Refused(f"{where}.containers: a pod needs at least one")
    names = [container.get("name") for container in containers]
    if None in names or len(set(names)) != len(names):
        raise Refused(f"{where}.containers are named {names}: each needs its own name")
    volumes = {volume["name"] for volume in pod_spec.get("volumes") or ()}
    for container in containers:
        for mount in container.get("volumeMounts") or ():
            if mount["name"] not in volumes:
                raise Refused(f'container "{container["name"]}" mounts "{mount["name"]}", not in {where}.volumes')
    try:
        place({"metadata": {}, "spec": pod_spec}, [_SOME_NODE], [])
    except MALFORMED as error:
        raise Refused(
            f"{where}: resources, affinity or tolerations cannot be read: {type(error).__name__} {error}"
        ) from error


def _check_taints(taints: list[Object]) -> None:
    for taint in taints:
        if not taint.get("key") or taint.get("effect") not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise Refused(f"taint {taint} needs a key and an effect: NoSchedule, PreferNoSchedule or NoExecute")


def _check_unchanged(kind: str, old: Object, new: Object) -> None:
    if kind in ("Deployment", "ReplicaSet", "DaemonSet", "Job") and old.get("selector") != new.get("selector"):
        raise Refused("spec.selector is immutable")
    if kind == "Job" and old.get("template") != new.get("template"):
        raise Refused("spec.template is immutable: delete the Job and create another")
    if kind == "Pod":
        free = _MUTABLE_POD_FIELDS | (frozenset() if old.get("nodeName") else frozenset({"nodeName"}))
        changed = [key for key in {*old, *new} - free if old.get(key) != new.get(key)]
        if changed:
            raise Refused(f"spec.{sorted(changed)[0]} of a pod is immutable")
