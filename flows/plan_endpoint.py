"""Plan an endpoint that is not in the cluster yet, or not as it is written in a file. Looks only."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from flows.preparing import Prepared, plan_for
from tasks.plan.resources import parse_endpoint


@flow(
    name="plan-endpoint",
    flow_run_name="plan {resource[metadata][name]}",
    task_runner=ThreadPoolTaskRunner(max_workers=16),  # type: ignore[arg-type]  # futures are invariant there
)
def plan_endpoint(resource: dict[str, Any]) -> Prepared:
    """What a rollout of this InferenceEndpointConfig would do now."""
    endpoint = parse_endpoint(resource)
    return plan_for(endpoint)
