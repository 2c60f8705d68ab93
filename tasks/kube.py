"""The one door to Kubernetes: eight verbs on plain dicts.

Behind it stands the official client, or the embedded cluster of a laptop. Foreign errors become ours here:

    KubeError
    ├── NotFound         there is no such object
    ├── AlreadyExists    create met an object of that name
    ├── Conflict         the resourceVersion moved, or another manager owns the field
    ├── Invalid          the API refused the object
    ├── Gone             a watch is too old: list again
    └── Unavailable      the API did not answer; worth a retry
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

Object = dict[str, Any]

FIELD_MANAGER = "warmpath"


class KubeError(Exception):
    """Kubernetes refused or failed; the message names the object and what to do."""


class NotFound(KubeError): ...


class AlreadyExists(KubeError): ...


class Conflict(KubeError): ...


class Invalid(KubeError): ...


class Gone(KubeError): ...


class Unavailable(KubeError): ...


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str
    plural: str
    namespaced: bool = True


WARMPATH = "warmpath.dev/v1alpha1"

KINDS: dict[str, Kind] = {
    "Node": Kind("v1", "nodes", namespaced=False),
    "Pod": Kind("v1", "pods"),
    "ConfigMap": Kind("v1", "configmaps"),
    "Secret": Kind("v1", "secrets"),
    "Service": Kind("v1", "services"),
    "Event": Kind("v1", "events"),
    "EndpointSlice": Kind("discovery.k8s.io/v1", "endpointslices"),
    "Job": Kind("batch/v1", "jobs"),
    "Deployment": Kind("apps/v1", "deployments"),
    "ReplicaSet": Kind("apps/v1", "replicasets"),
    "DaemonSet": Kind("apps/v1", "daemonsets"),
    "Lease": Kind("coordination.k8s.io/v1", "leases"),
    "InferenceEndpointConfig": Kind(WARMPATH, "inferenceendpointconfigs"),
    "ModelDataCacheConfig": Kind(WARMPATH, "modeldatacacheconfigs"),
    "ModelImageCache": Kind(WARMPATH, "modelimagecaches"),
    "NodeCache": Kind(WARMPATH, "nodecaches", namespaced=False),
}


@dataclass(frozen=True, slots=True)
class ObjectList:
    items: list[Object]
    resource_version: str


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """type: ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Object


class Kube(Protocol):
    """What the rest of Warmpath may ask of a cluster.

    `namespace` is "" for cluster-scoped kinds and, in list and watch, for all namespaces.
    `labels` and `fields` are Kubernetes selector strings ("a=b,c in (d,e),!f").
    """

    def get(self, kind: str, name: str, namespace: str = "") -> Object: ...

    def list(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList: ...

    def create(self, body: Object) -> Object: ...

    def apply(self, body: Object, *, manager: str = FIELD_MANAGER, force: bool = False) -> Object:
        """Server-side apply: create or change only the fields in `body`; Conflict names other managers."""
        ...

    def patch(self, kind: str, name: str, body: Object, namespace: str = "", *, subresource: str = "") -> Object:
        """Merge patch (None deletes). `subresource` "status" or "scale". A resourceVersion in body is checked."""
        ...

    def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete with background propagation; dependents follow. `uid` guards against a namesake."""
        ...

    def watch(
        self, kind: str, namespace: str = "", labels: str = "", *, resource_version: str = "", timeout_s: float = 60.0
    ) -> Iterator[WatchEvent]:
        """Events after `resource_version` until `timeout_s`; raises Gone when it is too old."""
        ...

    def logs(self, pod: str, namespace: str, *, tail_lines: int = 100) -> str: ...
