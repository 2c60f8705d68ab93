"""The routing in force: built whole from a valid config, never edited, swapped in by one assignment.

A request reads `LiveRouting.current` once and keeps it to its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from router.config import EndpointConfig, RouterConfig, RoutingSettings, Strategy
from router.instances import Instance, Instances
from router.policies import Policy
from router.policies.least_outstanding import choose_least_outstanding
from router.policies.prefix_aware import prefix_aware
from router.policies.random import choose_random


@dataclass(frozen=True, slots=True)
class EndpointRouting:
    """One endpoint, ready to choose. eligible: its instances that may get new requests.

    prefix_length: how much of the prompt the policy wants to see, 0 for nothing.
    """

    config: EndpointConfig
    name: str
    strategy: str
    instances: tuple[Instance, ...]
    eligible: tuple[Instance, ...]
    prefix_length: int
    choose: Policy


@dataclass(frozen=True, slots=True)
class Routing:
    """All endpoints. by_model: by their own name and by the models they serve; only: the endpoint if there is one."""

    config: RouterConfig
    endpoints: Mapping[str, EndpointRouting]
    by_model: Mapping[str, EndpointRouting]
    only: EndpointRouting | None


def build_policy(settings: RoutingSettings) -> Policy:
    match settings.strategy:
        case Strategy.RANDOM:
            return choose_random
        case Strategy.LEAST_OUTSTANDING_REQUESTS:
            return choose_least_outstanding
        case Strategy.PREFIX_AWARE:
            return prefix_aware(concurrency_threshold=settings.concurrency_threshold or 1)
        case unknown:
            assert_never(unknown)


def build_routing(config: RouterConfig, instances: Mapping[str, Instance]) -> Routing:
    """The routing of `config` over `instances` by uid."""
    endpoints = {
        endpoint.name: EndpointRouting(
            config=endpoint,
            name=endpoint.name,
            strategy=endpoint.routing.strategy.value,
            instances=tuple(instances[instance.uid] for instance in endpoint.instances),
            eligible=tuple(instances[instance.uid] for instance in endpoint.instances if not instance.draining),
            prefix_length=endpoint.routing.prefix_length or 0,
            choose=build_policy(endpoint.routing),
        )
        for endpoint in config.endpoints
    }
    by_model: dict[str, EndpointRouting] = {}
    for endpoint in endpoints.values():
        for model in endpoint.config.models:
            by_model.setdefault(model, endpoint)
    return Routing(
        config=config,
        endpoints=endpoints,
        by_model=by_model | endpoints,  # an endpoint's own name wins
        only=next(iter(endpoints.values())) if len(endpoints) == 1 else None,
    )


class LiveRouting:
    """Holds the routing in force and the instances that outlive it."""

    def __init__(self) -> None:
        self.instances = Instances()
        self.current = build_routing(RouterConfig(), {})
        self.is_loaded = False

    def replace(self, raw: bytes) -> RouterConfig:
        """Validate, build, swap. An invalid `raw` raises pydantic's ValidationError and changes nothing."""
        config = RouterConfig.model_validate_json(raw)
        known = self.instances.follow(instance for endpoint in config.endpoints for instance in endpoint.instances)
        self.current = build_routing(config, known)
        self.is_loaded = True
        return config
