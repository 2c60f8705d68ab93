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
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from infra.local.cluster.store import Store, StoreError

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


class EmbeddedKube:
    """The door to the embedded cluster of a laptop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, kind: str, name: str, namespace: str = "") -> Object:
        with _our_errors(kind):
            return self._store.get(kind, name, namespace)

    def list(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList:
        with _our_errors(kind):
            return ObjectList(*self._store.list(kind, namespace, labels, fields))

    def create(self, body: Object) -> Object:
        with _our_errors(body.get("kind", "")):
            _check_api_version(body)
            return self._store.create(body, manager=FIELD_MANAGER)

    def apply(self, body: Object, *, manager: str = FIELD_MANAGER, force: bool = False) -> Object:
        with _our_errors(body.get("kind", "")):
            _check_api_version(body)
            return self._store.apply(body, manager=manager, force=force)

    def patch(self, kind: str, name: str, body: Object, namespace: str = "", *, subresource: str = "") -> Object:
        with _our_errors(kind):
            return self._store.patch(kind, name, body, namespace, subresource=subresource, manager=FIELD_MANAGER)

    def delete(self, kind: str, name: str, namespace: str = "", *, uid: str = "") -> None:
        with _our_errors(kind):
            self._store.delete(kind, name, namespace, uid=uid)

    def watch(
        self, kind: str, namespace: str = "", labels: str = "", *, resource_version: str = "", timeout_s: float = 60.0
    ) -> Iterator[WatchEvent]:
        with _our_errors(kind):
            for event in self._store.watch(
                kind, namespace, labels, resource_version=resource_version, timeout_s=timeout_s
            ):
                yield WatchEvent(event.type, event.object)

    def logs(self, pod: str, namespace: str, *, tail_lines: int = 100) -> str:
        with _our_errors("Pod"):
            return self._store.logs(pod, namespace, tail_lines=tail_lines)


_ERRORS: dict[str, type[KubeError]] = {
    "NotFound": NotFound,
    "AlreadyExists": AlreadyExists,
    "Conflict": Conflict,
    "Invalid": Invalid,
    "Expired": Gone,
}


def _check_api_version(body: Object) -> None:
    """Kubernetes has no such kind elsewhere; an endpoint in Amazon's group is taken as it is."""
    wanted, found = KINDS[body["kind"]].api_version, body.get("apiVersion", "")
    if found != wanted and not (wanted == WARMPATH and ".sagemaker." in found):
        raise Invalid(f'{body["kind"]} has apiVersion "{found}", it must be "{wanted}"')


@contextmanager
def _our_errors(kind: str) -> Iterator[None]:
    if kind not in KINDS:
        raise Invalid(f'kind "{kind}" is unknown: use one of {", ".join(KINDS)}')
    try:
        yield
    except StoreError as error:
        raise _ERRORS[error.reason](str(error)) from error
    except sqlite3.OperationalError as error:
        raise Unavailable(f"the embedded cluster's store does not answer: {error}") from error


def connect() -> Kube:
    """The cluster that WARMPATH_KUBE names: `embedded:<directory>` or `kubernetes`."""
    where = os.environ.get("WARMPATH_KUBE", "")
    kind, _, directory = where.partition(":")
    if kind == "embedded" and directory:
        return _embedded(directory)
    if where == "kubernetes":
        raise KubeError("WARMPATH_KUBE=kubernetes: this build knows only the embedded cluster, embedded:<directory>")
    found = f'is "{where}"' if where else "is not set"
    raise KubeError(f"WARMPATH_KUBE {found}: set it to embedded:<directory of the cluster> or to kubernetes")


@cache
def _embedded(directory: str) -> EmbeddedKube:
    """One store per directory and process, so that every task and thread shares its connections."""
    return EmbeddedKube(Store(directory))
