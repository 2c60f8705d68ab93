"""Builders of the values that plans are made of. Session-wide, so that hypothesis may use them too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.plan.manifest import build_manifest
from tasks.plan.resources import Endpoint, parse_endpoint
from tasks.plan.types import Manifest, ModelFile, Node, Source, SourceKind

EXAMPLES = Path(__file__).parents[2] / "examples"
GB = 10**9
ABSENT = object()

Resource = dict[str, Any]


def changed(resource: Resource, changes: dict[str, Any]) -> Resource:
    """A copy with values put at dotted paths; ABSENT removes."""
    result = copy.deepcopy(resource)
    for path, value in changes.items():
        *heads, last = path.split(".")
        place = result
        for head in heads:
            place = place.setdefault(head, {})
        if value is ABSENT:
            place.pop(last, None)
        else:
            place[last] = value
    return result


@pytest.fixture(scope="session")
def absent() -> object:
    return ABSENT


@pytest.fixture(scope="session")
def resource() -> Callable[..., Resource]:
    """The S3 example with changes by dotted path."""
    example = yaml.safe_load((EXAMPLES / "endpoint.yaml").read_text())
    return lambda changes=None: changed(example, changes or {})


@pytest.fixture(scope="session")
def endpoint(resource: Callable[..., Resource]) -> Callable[..., Endpoint]:
    return lambda changes=None: parse_endpoint(resource({"metadata.uid": "iec-1", **(changes or {})}))


@pytest.fixture(scope="session")
def manifest() -> Callable[..., Manifest]:
    """A manifest of files given as {path: (size, pin)}."""

    def build(files: dict[str, tuple[int, str]] | None = None) -> Manifest:
        told = files or {f"model-{n}.safetensors": (GB, f"etag:{n}") for n in range(4)}
        source = Source(SourceKind.S3, "s3://models/tiny-llama/")
        return build_manifest(source, "", [ModelFile(path, size, pin=pin) for path, (size, pin) in told.items()])

    return build


@pytest.fixture(scope="session")
def node() -> Callable[..., Node]:
    """A ready ml.local node with 20 GB, all free."""

    def build(name: str = "node-1", **fields: Any) -> Node:
        defaults: dict[str, Any] = {
            "uid": f"uid-{name}",
            "labels": {"node.kubernetes.io/instance-type": "ml.local", "kubernetes.io/hostname": name},
            "capacity_bytes": 20 * GB,
            "free_bytes": 20 * GB,
        }
        return Node(name, **{**defaults, **fields})

    return build
