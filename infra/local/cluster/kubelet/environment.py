"""A container's environment variables. Values of Secrets are never rewritten, logged or named in errors."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable

from infra.local.cluster.kubelet.mounts import expand
from infra.local.cluster.objects import Object

Find = Callable[[str, str], Object | None]  # (kind, name) in the pod's namespace

_ANNOTATED = re.compile(r"^metadata\.(?P<map>labels|annotations)\['(?P<key>[^']+)'\]$")


class NotStartable(Exception):
    """A container cannot start yet; `reason` as Kubernetes names it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def variables_of(
    pod: Object, container: Object, pod_ip: str, find: Find, rewrite: Callable[[str], str]
) -> dict[str, str]:
    """envFrom first, then env in order, where a value may refer to earlier ones as $(NAME)."""
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for kind, field in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if field in source:
                data = _data(kind, source[field], find)
                variables |= {prefix + key: value for key, value in data.items()}
    for entry in container.get("env") or ():
        value = _value(entry, pod, pod_ip, find)
        if value is None:
            continue
        is_literal = "valueFrom" not in entry
        variables[entry["name"]] = rewrite(expand(value, variables)) if is_literal else value
    return variables


def data_of(obj: Object) -> dict[str, bytes]:
    """The content of a ConfigMap or a Secret."""
    data: dict[str, str] = obj.get("data") or {}
    if obj["kind"] == "Secret":
        return {key: base64.b64decode(value) for key, value in data.items()}
    binary: dict[str, str] = obj.get("binaryData") or {}
    plain = {key: value.encode() for key, value in data.items()}
    return plain | {key: base64.b64decode(value) for key, value in binary.items()}


def found(kind: str, reference: Object, find: Find) -> Object | None:
    """The object that `reference` names; None when it is absent and optional."""
    name = reference.get("name") or reference.get("secretName")
    obj = find(kind, str(name))
    if obj is None and not reference.get("optional"):
        raise NotStartable("CreateContainerConfigError", f'{kind.lower()} "{name}" not found')
    return obj


def _value(entry: Object, pod: Object, pod_ip: str, find: Find) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"], pod_ip)
    for kind, field in (("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")):
        if field in source:
            return _key(kind, source[field], find)
    raise NotStartable(
        "CreateContainerConfigError",
        f'env "{entry["name"]}": {", ".join(source)} is not known here; use fieldRef, configMapKeyRef or secretKeyRef',
    )


def _field(pod: Object, path: str, pod_ip: str) -> str:
    metadata = pod["metadata"]
    if annotated := _ANNOTATED.match(path):
        return str((metadata.get(annotated["map"]) or {}).get(annotated["key"], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"]["nodeName"],
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.podIP": pod_ip,
        "status.hostIP": "127.0.0.1",
    }
    if path not in known:
        raise NotStartable("CreateContainerConfigError", f'fieldPath "{path}" is not known: use {", ".join(known)}')
    return str(known[path])


def _key(kind: str, reference: Object, find: Find) -> str | None:
    data = _data(kind, reference, find)
    key = reference["key"]
    if key not in data and not reference.get("optional"):
        raise NotStartable("CreateContainerConfigError", f"couldn't find key {key} in {kind} {reference['name']}")
    return data.get(key)


def _data(kind: str, reference: Object, find: Find) -> dict[str, str]:
    obj = found(kind, reference, find)
    return {key: value.decode() for key, value in data_of(obj).items()} if obj else {}
