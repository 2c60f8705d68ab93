"""What the router should obey: from endpoints, EndpointSlices and nodes to its settings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from router.config import EndpointConfig, InstanceConfig, RouterConfig, RoutingSettings
from tasks.plan.objects import ready_label
from tasks.plan.schema import KIND

SERVICE_NAME = "kubernetes.io/service-name"
Object = Mapping[str, Any]


def build_router_config(
    endpoints: Iterable[Object], slices: Iterable[Object], nodes: Iterable[Object], cache_uids: Mapping[str, str]
) -> RouterConfig:
    """One router endpoint per InferenceEndpointConfig, with the pods that can serve.

    cache_uids: endpoint name → uid of the cache it serves, by which a node's label tells whether it is warm.
    A pod that is terminating but still serves is told as draining. Settings that do not validate fall back to
    RANDOM: the resource was refused at `apply`, so this is a change made behind our back, and requests come first.
    """
    found = [endpoint for endpoint in endpoints if endpoint.get("kind", KIND) == KIND]
    by_service: dict[tuple[str, str], list[Object]] = {}
    for piece in slices:
        service = (piece["metadata"].get("labels") or {}).get(SERVICE_NAME, "")
        by_service.setdefault((piece["metadata"]["namespace"], service), []).append(piece)
    labels = {node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in nodes}
    seen: dict[str, EndpointConfig] = {}
    created: dict[str, str] = {}
    for endpoint in sorted(found, key=lambda e: (e["metadata"]["namespace"] != "default", e["metadata"]["namespace"])):
        name, namespace = endpoint["metadata"]["name"], endpoint["metadata"]["namespace"]
        # The same name in two namespaces: the first keeps it, the other is reached by its full name.
        public = name if name not in seen else f"{namespace}.{name}"
        warm = ready_label(cache_uids[name]) if name in cache_uids else ""
        instances = _instances(by_service.get((namespace, name), []), labels, warm)
        seen[public] = EndpointConfig(
            name=public,
            models=(str(endpoint["spec"]["modelName"]),) if endpoint["spec"].get("modelName") else (),
            routing=_settings(endpoint),
            instances=tuple(sorted(instances, key=lambda instance: instance.uid)),
        )
        created[public] = str(endpoint["metadata"].get("creationTimestamp", ""))
    models = _model_owners(seen, created)
    return RouterConfig(
        endpoints=tuple(seen[name].model_copy(update={"models": models[name]}) for name in sorted(seen))
    )


def _model_owners(seen: Mapping[str, EndpointConfig], created: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Endpoint → models it answers to. A model that several endpoints name is the oldest's that has instances.

    So an endpoint that is new, or whose rollout failed, takes no requests from one that serves; all of them are
    reached by their own names.
    """
    owned: dict[str, tuple[str, ...]] = dict.fromkeys(seen, ())
    taken: set[str] = set()
    for name in sorted(seen, key=lambda name: (not seen[name].instances, created[name], name)):
        owned[name] = tuple(model for model in seen[name].models if model not in taken)
        taken.update(owned[name])
    return owned


def _settings(endpoint: Object) -> RoutingSettings:
    try:
        return RoutingSettings.model_validate(endpoint["spec"].get("routing") or {})
    except ValidationError:
        return RoutingSettings()


def _instances(
    slices: Iterable[Object], labels: Mapping[str, Mapping[str, str]], warm: str
) -> Iterator[InstanceConfig]:
    seen = set()
    for piece in slices:
        port = next((p["port"] for p in piece.get("ports") or [] if p.get("port")), None)
        for member in piece.get("endpoints") or []:
            conditions, pod = member.get("conditions") or {}, member.get("targetRef") or {}
            # `serving` is readiness without regard to termination; older control planes tell only `ready`.
            # What is not said is true, by the API's own words.
            serves = next((conditions[c] for c in ("serving", "ready") if conditions.get(c) is not None), True)
            uid = pod.get("uid")
            if port is None or not serves or not member.get("addresses") or not uid or uid in seen:
                continue
            seen.add(uid)
            node = member.get("nodeName") or ""
            yield InstanceConfig(
                uid=uid,
                name=pod.get("name", ""),
                host=member["addresses"][0],
                port=port,
                node=node,
                warm=bool(warm) and labels.get(node, {}).get(warm) == "true",
                draining=bool(conditions.get("terminating")),
            )
