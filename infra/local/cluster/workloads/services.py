"""Services: the pods behind each, as one EndpointSlice. There is no virtual address: clients use the endpoints."""

from __future__ import annotations

from infra.local.cluster.actions import Action, Create, Delete, Patch
from infra.local.cluster.objects import (
    Object,
    controller_reference,
    is_deleting,
    labels_of,
    name_of,
    namespace_of,
    uid_of,
)
from infra.local.cluster.selectors import match_selector
from infra.local.cluster.workloads.pods import FINISHED, is_ready, phase_of

SERVICE_NAME = "kubernetes.io/service-name"


def plan_service(service: Object, pods: list[Object], slices: list[Object]) -> list[Action]:
    spec = service["spec"]
    if is_deleting(service) or not spec.get("selector"):
        return []
    chosen = [pod for pod in pods if namespace_of(pod) == namespace_of(service) and _is_behind(pod, spec["selector"])]
    chosen.sort(key=name_of)
    everyone = bool(spec.get("publishNotReadyAddresses"))
    endpoints = [_endpoint(pod, everyone=everyone) for pod in chosen]
    ports = [_port(port, chosen) for port in spec.get("ports") or ()]
    if not slices:
        return [Create(_slice(service, endpoints, ports))]
    first, *others = slices
    actions: list[Action] = [Delete(extra) for extra in others]
    if first.get("endpoints") != endpoints or first.get("ports") != ports:
        actions.append(Patch(first, {"endpoints": endpoints, "ports": ports}))
    return actions


def _is_behind(pod: Object, selector: dict[str, str]) -> bool:
    has_address = bool((pod.get("status") or {}).get("podIP"))
    return has_address and phase_of(pod) not in FINISHED and match_selector({"matchLabels": selector}, labels_of(pod))


def _endpoint(pod: Object, *, everyone: bool) -> Object:
    serving, leaving = is_ready(pod), is_deleting(pod)
    return {
        "addresses": [pod["status"]["podIP"]],
        "conditions": {"ready": everyone or (serving and not leaving), "serving": serving, "terminating": leaving},
        "targetRef": {"kind": "Pod", "name": name_of(pod), "namespace": namespace_of(pod), "uid": uid_of(pod)},
        "nodeName": pod["spec"]["nodeName"],
    }


def _port(port: Object, pods: list[Object]) -> Object:
    """The port on the pods; a named one is looked up in the first pod that has it."""
    target = port["targetPort"]
    if isinstance(target, str):
        named = [
            declared["containerPort"]
            for pod in pods
            for container in pod["spec"]["containers"]
            for declared in container.get("ports") or ()
            if declared.get("name") == target
        ]
        target = named[0] if named else None
    return {"name": port.get("name", ""), "port": target, "protocol": port["protocol"]}


def _slice(service: Object, endpoints: list[Object], ports: list[Object]) -> Object:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "generateName": f"{name_of(service)}-",
            "namespace": namespace_of(service),
            "labels": {**labels_of(service), SERVICE_NAME: name_of(service)},
            "ownerReferences": [controller_reference(service)],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    }
