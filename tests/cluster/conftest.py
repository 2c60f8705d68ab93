from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from infra.local.cluster.nodes import add_node
from infra.local.cluster.runner import Runner
from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube, Kube, KubeError, Object

T = TypeVar("T")


class EmbeddedCluster:
    """A cluster whose control plane moves only while somebody waits for something."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.kube: Kube = EmbeddedKube(self.store)
        self.runner = Runner(self.store)

    def add_node(self, name: str, **more: object) -> None:
        add_node(self.store, name, **more)  # type: ignore[arg-type]

    def until(self, found: Callable[[], T], timeout_s: float = 15.0) -> T:
        """What `found` returns, once it is true and raises nothing."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.runner.tick()
            try:
                if result := found():
                    return result
            except (KubeError, KeyError, IndexError):
                pass
            time.sleep(0.01)
        raise AssertionError(f"not within {timeout_s} s; pods: {self.pods()}")

    def pods(self) -> list[tuple[str, str, Object]]:
        return [(pod["metadata"]["name"], pod["status"]["phase"], pod["status"]) for pod in self.kube.list("Pod").items]

    def close(self) -> None:
        self.runner.stop()
        self.store.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "cluster")
    yield store
    store.close()


@pytest.fixture(params=["embedded"])
def kube(request: pytest.FixtureRequest) -> Kube:
    """The door to an API without controllers; one parameter per implementation."""
    return EmbeddedKube(request.getfixturevalue("store"))


@pytest.fixture(params=["embedded"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """A cluster with all of its control plane, and no nodes yet."""
    cluster = EmbeddedCluster(tmp_path / "cluster")
    yield cluster
    cluster.close()
