"""What the router obeys: endpoints, their routing settings, their instances. Frozen and validated whole.

The file is JSON, written by one rename, and swapped in by one assignment.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Strategy(StrEnum):
    """Names as SageMaker's RoutingStrategy."""

    RANDOM = "RANDOM"
    LEAST_OUTSTANDING_REQUESTS = "LEAST_OUTSTANDING_REQUESTS"
    PREFIX_AWARE = "PREFIX_AWARE"


class Frozen(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True, validate_default=True
    )


class RoutingSettings(Frozen):
    """How requests are spread over an endpoint's instances. Bounds as SageMaker's PrefixAwareRoutingConfig."""

    strategy: Strategy = Strategy.RANDOM
    """RANDOM, LEAST_OUTSTANDING_REQUESTS or PREFIX_AWARE."""

    prefix_length: Annotated[int | None, Field(alias="prefixLength", ge=1024, le=65536)] = None
    """Characters of the canonical prompt that make the routing key (PREFIX_AWARE only)."""

    concurrency_threshold: Annotated[int | None, Field(alias="concurrencyThreshold", ge=1, le=1024)] = None
    """Requests in flight at which an instance passes a prefix on to the next in rank (PREFIX_AWARE only)."""

    @model_validator(mode="after")
    def _settings_belong_to_the_strategy(self) -> Self:
        given = [
            name
            for name, value in (
                ("prefixLength", self.prefix_length),
                ("concurrencyThreshold", self.concurrency_threshold),
            )
            if value is not None
        ]
        if self.strategy is Strategy.PREFIX_AWARE and len(given) < 2:
            raise ValueError("PREFIX_AWARE needs both prefixLength (1024-65536) and concurrencyThreshold (1-1024)")
        if self.strategy is not Strategy.PREFIX_AWARE and given:
            raise ValueError(f"{' and '.join(given)} belong to PREFIX_AWARE; the strategy is {self.strategy}")
        return self


class InstanceConfig(Frozen):
    """One replica the router can choose. Its identity is `uid`: a restart at the same address is another instance."""

    uid: str
    """Unique and never reused: the pod's UID."""

    name: str
    """What a human calls it: the pod's name."""

    host: str
    """IP address to connect to."""

    port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the engine's HTTP server."""

    node: str = ""
    """Node it runs on."""

    warm: bool = True
    """Whether its node holds a verified copy of the weights."""

    draining: bool = False
    """True once it must get no new request; those in flight end."""


class EndpointConfig(Frozen):
    """One endpoint: requests for `name`, or for one of `models`, go to its instances."""

    name: str
    """The endpoint's name, as in `/endpoints/{name}/invocations`."""

    models: tuple[str, ...] = ()
    """Further values of the body's `model` field that mean this endpoint."""

    routing: RoutingSettings = RoutingSettings()
    """Strategy and its settings."""

    instances: tuple[InstanceConfig, ...] = ()
    """Who can serve, now; uids are unique."""

    @model_validator(mode="after")
    def _uids_are_unique(self) -> Self:
        counts = Counter(instance.uid for instance in self.instances)
        twice = sorted(uid for uid, count in counts.items() if count > 1)
        if twice:
            raise ValueError(f"instances with the same uid: {', '.join(twice)}")
        return self


class RouterConfig(Frozen):
    """The whole routing file."""

    endpoints: tuple[EndpointConfig, ...] = ()
    """All endpoints; names are unique."""

    hash_seed: Annotated[int, Field(alias="hashSeed", ge=0, lt=2**64)] = 0
    """Seed of the prefix hash, the same in every replica of a router: others cannot tell which prompts will meet."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [endpoint.name for endpoint in self.endpoints]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"endpoints named twice: {', '.join(twice)}")
        return self
