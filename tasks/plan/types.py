"""The values that plans are made of. Frozen, typed, without I/O: every decision takes and returns these."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class SourceKind(StrEnum):
    S3 = "s3"
    HUGGINGFACE = "huggingface"
    FILE = "file"


class Formats(StrEnum):
    """Which weight formats may be cached: pickle-bearing ones can run code when they are loaded."""

    SAFE = "SafeOnly"
    ANY = "Any"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a model's weights come from. Holds no credential, ever.

    uri: `s3://bucket/prefix/`, `hf://org/model` or `file:///path`.
    revision: branch, tag or commit asked for; "" is the source's default.
    endpoint_url: S3 or hub address; "" is the public one.
    include, exclude: glob patterns on the path inside the model.
    """

    kind: SourceKind
    uri: str
    revision: str = ""
    endpoint_url: str = ""
    region: str = ""
    addressing_style: str = "auto"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    formats: Formats = Formats.SAFE


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a revision.

    path: relative, "/"-separated.
    digest: `sha256:<hex>` where the source gives it, "" otherwise.
    pin: what binds a ranged request to exactly this content: `etag:<etag>`, `version:<id>;etag:<etag>`,
        `commit:<sha>;oid:<blob id>` or `stat:<size>-<mtime_ns>`.
    crc64nvme: S3's full-object checksum as S3 writes it (base64), "" when S3 does not keep one.
    """

    path: str
    size_bytes: int
    digest: str = ""
    pin: str = ""
    crc64nvme: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A revision: a source pinned to immutable content. `digest` is its identity.

    revision: what a human calls it: the commit, or the first 12 characters of the digest for S3.
    """

    source: Source
    revision: str
    files: tuple[ModelFile, ...]
    digest: str

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """What one node says about one revision (an entry of its NodeCache)."""

    digest: str
    state: str  # Downloading | Ready | Suspect | Failed
    size_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """A node as a plan sees it: the Kubernetes Node and its NodeCache together.

    free_bytes, capacity_bytes: of the store's filesystem (or its limit); None when no audit has told yet.
    """

    name: str
    uid: str
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    taints: tuple[tuple[str, str, str], ...] = ()  # (key, value, effect)
    ready: bool = True
    schedulable: bool = True
    deleting: bool = False
    boot_id: str = ""
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int = 0
    entries: tuple[CacheEntry, ...] = ()


class GateMode(StrEnum):
    ALL = "All"
    COUNT = "Count"
    PERCENTAGE = "Percentage"


class OnDeadline(StrEnum):
    OPEN_WITH_FALLBACK = "OpenWithFallback"
    HOLD = "Hold"
    FAIL = "Fail"


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """When a rollout may proceed. `value` is a count or a percentage; `All` ignores it."""

    mode: GateMode = GateMode.ALL
    value: int = 100
    deadline_s: float = 3600.0
    on_deadline: OnDeadline = OnDeadline.OPEN_WITH_FALLBACK
