from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from router.config import EndpointConfig, RouterConfig
from tasks import routers
from tasks.kube import EmbeddedKube, Gone, Kube, Object, ObjectList, Unavailable
from tasks.routers import follow, routed_pods, wait_until_routed, write


def make_endpoint(kube: Kube, name: str = "chat", **spec: Any) -> Object:
    metadata = {"name": name, "namespace": "default"}
    body = {"modelName": "tiny", **spec}
    kind = "InferenceEndpointConfig"
    return kube.create({"apiVersion": "warmpath.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": body})


def make_slice(kube: Kube, *uids: str, name: str = "chat") -> None:
    labels = {"kubernetes.io/service-name": name}
    members = [
        {
            "addresses": [f"127.0.0.{number}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
            "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid},
            "nodeName": "node-1",
        }
        for number, uid in enumerate(uids, start=2)
    ]
    body: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "namespace": "default", "labels": labels},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000}],
        "endpoints": members,
    }
    kube.apply(body)


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if result := found():
            return result
        time.sleep(0.01)
    raise AssertionError("not within 5 s")


def read(path: Path) -> dict[str, EndpointConfig]:
    if not path.exists():
        return {}
    return {endpoint.name: endpoint for endpoint in RouterConfig.model_validate_json(path.read_text()).endpoints}


def instances(path: Path, name: str = "chat") -> set[str]:
    return {instance.uid for instance in read(path)[name].instances} if name in read(path) else set()


class Shaky:
    """A door that fails when told to."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.error: Exception | None = None

    def list(self, kind: str, namespace: str = "", labels: str = "", fields: str = "") -> ObjectList:
        if self.error:
            raise self.error
        return self._kube.list(kind, namespace, labels, fields)

    def watch(self, kind: str, *, resource_version: str, timeout_s: float) -> Iterator[Any]:
        for event in self._kube.watch(kind, resource_version=resource_version, timeout_s=0.1):
            if self.error:
                raise self.error
            yield event
        if self.error:
            raise self.error


@pytest.fixture
def shaky(kube: EmbeddedKube) -> Shaky:
    return Shaky(kube)


@pytest.fixture
def path(shaky: Shaky, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The settings file, kept by `follow` in a thread."""
    monkeypatch.setattr(routers, "RETRY_S", 0.05)
    stop, path = threading.Event(), tmp_path / "routing.json"
    thread = threading.Thread(target=follow, args=(shaky, path, stop))
    thread.start()
    yield path
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_the_file_follows_endpoints_and_their_ready_pods(kube: EmbeddedKube, path: Path) -> None:
    make_endpoint(kube)
    make_slice(kube, "a", "b")
    until(lambda: instances(path) == {"a", "b"})
    make_slice(kube, "b", "c")
    until(lambda: instances(path) == {"b", "c"})
    kube.delete("InferenceEndpointConfig", "chat", "default")
    until(lambda: read(path) == {})


def test_new_routing_settings_reach_the_file(kube: EmbeddedKube, path: Path) -> None:
    make_endpoint(kube)
    routing = {"strategy": "PREFIX_AWARE", "prefixLength": 1024, "concurrencyThreshold": 4}
    until(lambda: read(path))
    kube.patch("InferenceEndpointConfig", "chat", {"spec": {"routing": routing}}, "default")
    until(lambda: read(path)["chat"].routing.prefix_length == 1024)


@pytest.mark.parametrize("error", [Unavailable("away"), Gone("too old")])
def test_a_cluster_that_does_not_answer_takes_no_instance_away(
    kube: EmbeddedKube, shaky: Shaky, path: Path, error: Exception
) -> None:
    make_endpoint(kube)
    make_slice(kube, "a")
    until(lambda: instances(path) == {"a"})
    shaky.error = error
    time.sleep(0.4)
    assert instances(path) == {"a"}
    make_slice(kube, "a", "b")
    shaky.error = None
    until(lambda: instances(path) == {"a", "b"})


def test_a_file_that_says_the_same_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "routing.json"
    config = RouterConfig(endpoints=(EndpointConfig(name="chat"),))
    assert write(path, config)
    before = path.stat().st_ino
    assert not write(path, config)
    assert path.stat().st_ino == before
    assert write(path, RouterConfig())
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A router's admin port; what it answers is in the dict."""
    answers: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path)).encode()
            self.send_response(200 if self.path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("WARMPATH_ROUTER_URL", f"http://127.0.0.1:{server.server_port}")
    yield answers
    server.shutdown()
    thread.join()
    server.server_close()


def say(router: dict[str, Any], *instances: dict[str, Any]) -> None:
    router["/routing"] = {"endpoints": {"chat": {"instances": list(instances)}, "other": {"instances": []}}}


def test_waiting_ends_when_the_router_serves_every_pod(router: dict[str, Any]) -> None:
    def serve_later() -> None:
        say(router, {"uid": "a"}, {"uid": "b"}, {"uid": "old", "draining": True})

    say(router, {"uid": "a"}, {"uid": "b", "draining": True})
    timer = threading.Timer(0.3, serve_later)
    timer.start()
    assert wait_until_routed.fn("chat", frozenset({"a", "b"}), timeout_s=10).ok
    assert not timer.is_alive(), "it did not wait for the pod that was draining"
    timer.join()


def test_a_router_that_does_not_follow_is_told_and_fails_nothing(router: dict[str, Any]) -> None:
    say(router, {"uid": "a"})
    routed = wait_until_routed.fn("chat", frozenset({"a", "b"}), timeout_s=0.2)
    assert not routed.ok
    assert "it knows 1 of 2 ready pods" in routed.reason
    router.clear()
    routed = wait_until_routed.fn("chat", frozenset({"a"}), timeout_s=0)
    assert "404" in routed.reason


def test_without_a_router_there_is_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WARMPATH_ROUTER_URL", raising=False)
    assert wait_until_routed.fn("chat", frozenset({"a"}), timeout_s=0).ok
    assert isinstance(routed_pods("http://127.0.0.1:9/routing"), str)
