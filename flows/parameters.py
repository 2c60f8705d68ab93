"""What a run is asked to do: typed models, so that the Prefect UI shows a form and bad input starts no process."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tasks.plan.types import GateMode, GatePolicy, OnDeadline

NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
Name = Annotated[str, Field(pattern=NAME, max_length=63)]


class Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Gate(Parameters):
    """When the endpoint may move, instead of what its cachePolicy.gate says."""

    mode: GateMode = GateMode.ALL
    """All target nodes warm, a Count of them, or a Percentage."""

    value: Annotated[int, Field(ge=1)] = 100
    """The count or the percentage; ignored for All."""

    deadline_s: Annotated[float, Field(gt=0, le=7 * 86400)] = 3600.0
    """Seconds to wait for it."""

    on_deadline: OnDeadline = OnDeadline.OPEN_WITH_FALLBACK
    """Then: OpenWithFallback rolls and lets cold nodes load from the source, Hold waits for another run, Fail stops."""

    @model_validator(mode="after")
    def _percentage_is_one(self) -> Self:
        if self.mode is GateMode.PERCENTAGE and self.value > 100:
            raise ValueError(f"a Percentage is 1 to 100, not {self.value}")
        return self

    def policy(self) -> GatePolicy:
        return GatePolicy(self.mode, self.value, self.deadline_s, self.on_deadline)


class RollEndpoint(Parameters):
    """Roll an endpoint onto the current content of its source, nodes first."""

    endpoint: Name
    """Name of the InferenceEndpointConfig."""

    namespace: Name = "default"
    """Its namespace."""

    revision: Annotated[str, Field(max_length=200)] = ""
    """Branch, tag or commit to roll to; empty takes what the endpoint says."""

    replicas: Annotated[int | None, Field(ge=0, le=10_000)] = None
    """Replicas to scale to; empty keeps the number that runs now."""

    gate: Gate | None = None
    """When to move; empty takes the endpoint's own cachePolicy.gate."""

    allow_source_change: bool = False
    """Accept that the endpoint now names another source than the one it serves."""

    dry_run: bool = False
    """Only plan: nothing is fetched or changed."""

    nodes_per_task: Annotated[int, Field(ge=1, le=500)] = 64
    """Nodes that one task run looks after."""

    ready_timeout_s: Annotated[float, Field(gt=0, le=86400)] = 1800.0
    """Seconds without progress after which new pods that do not get ready are given up."""


class DeleteEndpoint(Parameters):
    """Delete an endpoint, its pods and, unless its cachePolicy retains them, its copies on the nodes."""

    endpoint: Name
    """Name of the InferenceEndpointConfig."""

    namespace: Name = "default"
    """Its namespace."""

    retain_cache: bool | None = None
    """Keep the copies on the nodes; empty takes the endpoint's own cachePolicy.retention."""

    dry_run: bool = True
    """Only tell what would be deleted."""

    nodes_per_task: Annotated[int, Field(ge=1, le=500)] = 64
    """Nodes that one task run looks after."""
