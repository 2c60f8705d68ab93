"""`cachePolicy`: what Warmpath adds to AWS's fields on how caches are filled, gated, placed and kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.plan.fields import Json, ObjectName, Schema
from tasks.plan.problems import wrong
from tasks.plan.types import Formats, GateMode, OnDeadline


class GateSpec(Schema):
    mode: GateMode = GateMode.ALL
    """All target nodes, a Count of them, or a Percentage."""
    value: Annotated[int, Field(ge=1)] = 100
    """The count or percentage; All ignores it."""
    deadline_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600
    """How long to wait for it."""
    on_deadline: OnDeadline = OnDeadline.OPEN_WITH_FALLBACK
    """Then: OpenWithFallback rolls and lets cold nodes load from the source, Hold waits for another run, Fail stops."""

    @model_validator(mode="after")
    def _percentage_is_one(self) -> Self:
        if self.mode is GateMode.PERCENTAGE and self.value > 100:
            raise wrong("value", self.value, "a percentage from 1 to 100")
        if self.mode is not GateMode.ALL and "value" not in self.model_fields_set:
            what = "how many nodes" if self.mode is GateMode.COUNT else "a percentage from 1 to 100"
            raise wrong("value", None, what, f"mode {self.mode} needs it.")
        return self


class SecretRef(Schema):
    name: ObjectName
    """The Secret; its keys become the environment of node Jobs (AWS_ACCESS_KEY_ID, HF_TOKEN …)."""


class SourcePolicy(Schema):
    endpoint_url: Annotated[str, Field(pattern=r"^(https?://[^\s@]+)?$")] = ""
    """S3-compatible store or hub; empty is AWS, or Hugging Face. No credentials in it."""
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    """How a bucket goes into the address."""
    revision: Annotated[str, Field(max_length=200)] = ""
    """Branch or tag to follow (huggingface)."""
    include: tuple[str, ...] = ()
    """Patterns of files to take; empty takes what an engine needs."""
    exclude: tuple[str, ...] = ()
    """Patterns of files to leave."""
    formats: Formats = Formats.SAFE
    """SafeOnly, or Any to allow formats that can run code when loaded."""
    mounted_path: str = ""
    """Where an fsx file system is mounted on the nodes."""
    credentials_secret_ref: SecretRef | None = None
    """Secret with the source's credentials; absent where the pods' identity is enough."""


class Retention(StrEnum):
    """What becomes of an endpoint's copies when it is deleted."""

    DELETE = "Delete"
    RETAIN = "Retain"


class Placement(StrEnum):
    """Whether pods prefer warm nodes, or accept no other."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class CachePolicy(Schema):
    gate: GateSpec = GateSpec()
    """When a rollout may proceed."""
    retention: Retention = Retention.DELETE
    """What becomes of the copies when the endpoint is deleted."""
    placement: Placement = Placement.PREFERRED
    """Whether pods prefer warm nodes or accept no other."""
    source: SourcePolicy = SourcePolicy()
    """How to reach the source."""
    tolerations: tuple[Json, ...] = ()
    """Taints of target nodes that Jobs and pods tolerate, as Kubernetes'."""
