"""The router's settings file: kept equal to what the cluster says. `python -m tasks.routers --config FILE`.

The router itself has no rights in the cluster; this process watches for it. When the cluster does not answer, the file
stays as it is and the router goes on with what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from router.config import RouterConfig
from tasks.kube import Gone, Kube, KubeError, Object, connect
from tasks.plan.routing import build_router_config
from tasks.stop import pause

log = logging.getLogger("warmpath.routers")

WATCHED = ("InferenceEndpointConfig", "EndpointSlice", "Node", "ModelDataCacheConfig")
SETTLE_S = 0.05
RETRY_S = 1.0


class Mirror:
    """All objects of one kind, listed once and then followed; `changed` is set after every change."""

    def __init__(self, kube: Kube, kind: str, changed: threading.Event) -> None:
        self._kube, self._kind, self._changed = kube, kind, changed
        self._objects: dict[str, Object] = {}
        self._lock = threading.Lock()
        self.listed = threading.Event()

    def objects(self) -> list[Object]:
        with self._lock:
            return list(self._objects.values())

    def follow(self, stop: threading.Event) -> None:
        """List and watch until `stop`; a failure is logged, and the last picture stays."""
        version = ""
        while not stop.is_set():
            try:
                version = self._watch(version or self._list(), stop)
            except Gone:
                version = ""
                stop.wait(SETTLE_S)
            except KubeError as error:
                log.warning("cannot follow %s: %s", self._kind, error)
                version = ""
                stop.wait(RETRY_S)

    def _list(self) -> str:
        listing = self._kube.list(self._kind)
        with self._lock:
            self._objects = {item["metadata"]["uid"]: item for item in listing.items}
        self.listed.set()
        self._changed.set()
        return listing.resource_version

    def _watch(self, version: str, stop: threading.Event) -> str:
        for event in self._kube.watch(self._kind, resource_version=version, timeout_s=60):
            version = event.object["metadata"]["resourceVersion"]
            if event.type == "BOOKMARK":
                continue
            uid = event.object["metadata"]["uid"]
            with self._lock:
                if event.type == "DELETED":
                    self._objects.pop(uid, None)
                else:
                    self._objects[uid] = event.object
            self._changed.set()
            if stop.is_set():
                break
        return version


def follow(kube: Kube, path: Path, stop: threading.Event) -> None:
    """Keep the file at `path` equal to the cluster until `stop`."""
    changed = threading.Event()
    mirrors = {kind: Mirror(kube, kind, changed) for kind in WATCHED}
    for mirror in mirrors.values():
        threading.Thread(target=mirror.follow, args=(stop,), daemon=True).start()
    # A file written from half a picture would take instances from the router.
    while not stop.is_set() and not all(mirror.listed.wait(0.1) for mirror in mirrors.values()):
        pass
    while not stop.is_set():
        if changed.wait(0.5):
            stop.wait(SETTLE_S)  # changes come in bursts
            changed.clear()
            write(path, picture(*(mirrors[kind].objects() for kind in WATCHED)))


def picture(endpoints: list[Object], slices: list[Object], nodes: list[Object], caches: list[Object]) -> RouterConfig:
    """What the router should obey, as the cluster is now."""
    uids = {(cache["metadata"]["namespace"], cache["metadata"]["name"]): cache["metadata"]["uid"] for cache in caches}
    serving = {}
    for endpoint in endpoints:
        name, namespace = endpoint["metadata"]["name"], endpoint["metadata"]["namespace"]
        uid = uids.get((namespace, (endpoint.get("status") or {}).get("cache", "")))
        if uid:
            serving[name] = uid
    return build_router_config(endpoints, slices, nodes, serving)


def write(path: Path, config: RouterConfig) -> bool:
    """Replace the file by one rename; leaves it alone when it says the same already."""
    text = config.model_dump_json(by_alias=True, indent=1)
    with contextlib.suppress(FileNotFoundError):
        if path.read_text() == text:
            return False
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
    log.info("wrote %s: %s", path, ", ".join(f"{e.name} {len(e.instances)}" for e in config.endpoints) or "no endpoint")
    return True


@dataclass(frozen=True, slots=True)
class Routed:
    """Whether the router serves the endpoint's ready pods, and if not, why."""

    ok: bool
    reason: str = ""


@task(task_run_name="wait until {name} is routed", cache_policy=NO_CACHE)
def wait_until_routed(name: str, pod_uids: frozenset[str], *, timeout_s: float = 30.0) -> Routed:
    """Wait until the router sends requests to exactly these pods. A missing router never fails a rollout."""
    url = os.environ.get("WARMPATH_ROUTER_URL", "").rstrip("/")
    if not url:
        return Routed(ok=True, reason="no router to ask: WARMPATH_ROUTER_URL is unset")
    deadline = time.monotonic() + timeout_s
    while True:
        seen = routed_pods(f"{url}/routing")
        if isinstance(seen, frozenset) and pod_uids <= seen:
            return Routed(ok=True)
        if time.monotonic() > deadline:
            found = seen if isinstance(seen, str) else f"it knows {len(seen & pod_uids)} of {len(pod_uids)} ready pods"
            return Routed(
                ok=False,
                reason=f"The router at {url} does not serve {name} after {timeout_s:.0f} s: {found}. "
                "Check that `python -m tasks.routers` runs and writes the file that the router reads.",
            )
        pause(0.2)


def routed_pods(url: str) -> frozenset[str] | str:
    """UIDs of all pods that the router can choose now; a sentence when it cannot be asked."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:  # noqa: S310 - the operator's own router
            endpoints = json.load(response)["endpoints"].values()
            instances = [instance for endpoint in endpoints for instance in endpoint["instances"]]
    except (urllib.error.URLError, OSError, ValueError, KeyError) as error:
        return f"it answered {error!r}"
    return frozenset(instance["uid"] for instance in instances if not instance.get("draining"))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.routers", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="the router's settings file")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stop = threading.Event()
    on_signal(stop.set)
    follow(connect(), options.config, stop)


def on_signal(act: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: act())


if __name__ == "__main__":
    main()
