"""A small fleet for flow tests: an embedded cluster with its runner, a model, an endpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import State

from flows.parameters import RollEndpoint
from flows.roll_endpoint import roll_endpoint
from infra.local.cluster.logs import node_directory
from infra.local.cluster.nodes import add_node
from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube, Object
from tasks.plan.objects import ready_label

ROOT = Path(__file__).parents[2]
STORE = "opt/dlami/nvme/warmpath"
MB = 1_000_000


# Starts in a tenth of the time of an engine that can answer prompts.
ENGINE = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer((sys.argv[1], 8000), Handler).serve_forever()
"""
SIMULATED = {
    "command": ["python", "-m", "infra.local.engines.simulated"],
    "args": ["--model-dir", "/opt/ml/model", "--host", "$(POD_IP)", "--port", "8000"],
}


class Fleet:
    """An embedded cluster with its runner, a model on a mounted path, and an endpoint `chat` that names it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "cluster"
        self.model = directory / "fsx" / "model"
        self.store = Store(self.directory)
        self.kube = EmbeddedKube(self.store)
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "infra.local.cluster", "--dir", str(self.directory)]
        with (self.directory / "runner.log").open("ab") as log:
            self.runner = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT)

    def stop(self) -> None:
        self.runner.send_signal(signal.SIGTERM)
        self.runner.wait(20)

    def close(self) -> None:
        self.stop()
        self.store.close()

    def add_node(self, name: str, nvme_bytes: int = 100 * MB, **more: Any) -> None:
        """A node that has the mounted path too."""
        root = node_directory(self.directory, name)
        mounted = root / self.model.parent.relative_to("/")
        mounted.parent.mkdir(parents=True, exist_ok=True)
        if not mounted.exists():
            mounted.symlink_to(self.model.parent)
        labels = {"node.kubernetes.io/instance-type": "ml.local"}
        add_node(self.store, name, labels=labels, nvme_bytes=nvme_bytes, **more)
        self.until(lambda: self.kube.get("Node", name)["status"].get("conditions"))

    def write_model(self, **files: bytes) -> None:
        """Files of the model; "_" in a name stands for its dot."""
        self.model.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (self.model / name.replace("_", ".")).write_bytes(content)

    def apply(self, **spec: Any) -> Object:
        """Record the endpoint `chat`; `spec` replaces top-level fields."""
        body = {
            "apiVersion": "warmpath.dev/v1alpha1",
            "kind": "InferenceEndpointConfig",
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {
                "modelName": "tiny",
                "instanceType": "ml.local",
                "replicas": 1,
                "modelSourceConfig": {
                    "modelSourceType": "fsx",
                    "modelLocation": "model",
                    "fsxStorage": {"fileSystemId": "fs-1"},
                },
                "modelCacheConfig": {"weightsCache": {"enabled": True}},
                "cachePolicy": {"source": {"mountedPath": str(self.model.parent)}},
                "worker": {
                    "image": "engine",
                    "command": ["python", "-S", "-c", ENGINE],
                    "args": ["$(POD_IP)"],
                    "modelInvocationPort": {"containerPort": 8000},
                    "modelVolumeMount": {"name": "model"},
                    "resources": {},
                    "probes": {"readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 0.2}},
                },
                **spec,
            },
        }
        return self.kube.apply(body)

    def roll(self, **parameters: Any) -> State[Any]:
        asked = {"endpoint": "chat", "ready_timeout_s": 15, **parameters}
        return roll_endpoint(RollEndpoint(**asked), return_state=True)

    def endpoint(self) -> Object:
        return self.kube.get("InferenceEndpointConfig", "chat", "default")

    def status(self) -> Object:
        status: Object = self.endpoint()["status"]
        return status

    def caches(self) -> list[Object]:
        """All caches, the oldest first."""
        found = self.kube.list("ModelDataCacheConfig", "default").items
        return sorted(found, key=lambda cache: str(cache["metadata"]["creationTimestamp"]))

    def deployment(self) -> Object:
        return self.kube.get("Deployment", "chat", "default")

    def labelled(self, cache: Object) -> list[str]:
        nodes = self.kube.list("Node", labels=f"{ready_label(cache['metadata']['uid'])}=true").items
        return sorted(node["metadata"]["name"] for node in nodes)

    def trees(self, node: str) -> dict[str, dict[str, bytes]]:
        """Published revisions on a node's disk: digest to path to content."""
        published = node_directory(self.directory, node) / STORE / "trees"
        return {
            tree.name: {
                str(file.relative_to(tree / "files")): file.read_bytes()
                for file in (tree / "files").rglob("*")
                if file.is_file()
            }
            for tree in sorted(published.glob("*"))
        }

    def pods(self) -> list[Object]:
        """Engine pods that are not going away."""
        found = self.kube.list("Pod", "default", labels="warmpath.dev/role=engine").items
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def serving(self) -> set[str]:
        """UIDs of pods that a client would reach."""
        slices = self.kube.list("EndpointSlice", "default", labels="kubernetes.io/service-name=chat").items
        members = [member for piece in slices for member in piece.get("endpoints") or []]
        return {member["targetRef"]["uid"] for member in members if member["conditions"]["ready"]}

    def until(self, found: Callable[[], Any], timeout_s: float = 20.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if result := found():
                return result
            time.sleep(0.05)
        raise AssertionError(f"not within {timeout_s} s: {found}")
