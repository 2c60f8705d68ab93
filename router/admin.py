"""What the router says about itself: health, metrics and models on the main port, the routing on the admin port too."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import unquote_to_bytes

from router.paths import Api
from router.proxy import Proxy
from router.replies import Failure, Reply, error_reply, json_reply
from router.routing import EndpointRouting

PLAIN = b"text/plain; charset=utf-8"
PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


def answer_public(proxy: Proxy, path: bytes) -> Reply | None:
    """The router's own answer to GET `path` on the main port, None when it has none."""
    match path:
        case b"/healthz":
            return Reply(200, b"ok\n", PLAIN)
        case b"/readyz":
            return _readiness(proxy)
        case b"/metrics":
            return Reply(200, proxy.metrics.render(proxy.live.current), PROMETHEUS)
        case b"/v1/models":
            return json_reply(200, {"object": "list", "data": [_model(name) for name in _models(proxy)]})
    name = _below(path, b"/v1/models/")
    if name:
        if name in proxy.live.current.by_model:
            return json_reply(200, _model(name))
        return _not_found(f"there is no model named {name!r} here", "model_not_found")
    return None


def answer_admin(proxy: Proxy, path: bytes) -> Reply | None:
    """As `answer_public`, and GET /routing and /routing/{endpoint}: what is in force, with counts of this moment."""
    routing = proxy.live.current
    if path == b"/routing":
        endpoints = {name: _endpoint(endpoint) for name, endpoint in routing.endpoints.items()}
        return json_reply(200, {"loaded": proxy.live.is_loaded, "endpoints": endpoints})
    name = _below(path, b"/routing/")
    if name:
        if name in routing.endpoints:
            return json_reply(200, _endpoint(routing.endpoints[name]))
        known = ", ".join(sorted(routing.endpoints)) or "none"
        return _not_found(f"there is no endpoint named {name!r}; there are: {known}", "endpoint_not_found")
    return answer_public(proxy, path)


def _readiness(proxy: Proxy) -> Reply:
    if proxy.is_draining:
        return Reply(503, b"draining\n", PLAIN)
    if not proxy.live.is_loaded:
        return Reply(503, b"no routing file has been loaded yet\n", PLAIN)
    return Reply(200, b"ready\n", PLAIN)


def _endpoint(endpoint: EndpointRouting) -> dict[str, Any]:
    document = endpoint.config.model_dump(mode="json", by_alias=True, exclude={"instances"}, exclude_none=True)
    document["instances"] = [
        config.model_dump(mode="json", by_alias=True) | {"in_flight": instance.in_flight}
        for config, instance in zip(endpoint.config.instances, endpoint.instances, strict=True)
    ]
    return document


def _models(proxy: Proxy) -> list[str]:
    return list(proxy.live.current.by_model)


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED_S, "owned_by": "warmpath"}


def _below(path: bytes, parent: bytes) -> str:
    return unquote_to_bytes(path.removeprefix(parent)).decode("utf-8", "replace") if path.startswith(parent) else ""


def _not_found(message: str, code: str) -> Reply:
    return error_reply(Api.OPENAI, Failure(404, code, message))


STARTED_S = int(time.time())
