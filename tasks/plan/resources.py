"""An endpoint as plans see it: read from its resource, checked whole, every fault told at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from router.config import RoutingSettings
from tasks.plan.schema import (
    API_VERSION,
    AWS_API_VERSION,
    KIND,
    EndpointSpec,
    Placement,
    Retention,
    SourceType,
    WorkerSpec,
)
from tasks.plan.types import GatePolicy, Source, SourceKind

# A cache's name is `<endpoint>-<12 hex digits>` and must stay a DNS label.
MAX_NAME = 50


class InvalidResource(ValueError):
    """A resource that is refused; `problems` has a sentence for each bad field."""

    def __init__(self, what: str, problems: list[str]) -> None:
        super().__init__(f"{what} is refused:\n" + "\n".join(f"  {problem}" for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a user wants of one endpoint. Secrets are named here, never held."""

    name: str
    namespace: str
    uid: str
    model_name: str
    source: Source
    replicas: int
    weights_cache: bool
    host_path: str
    worker: WorkerSpec
    gate: GatePolicy
    retention: Retention
    placement: Placement
    routing: RoutingSettings
    instance_types: tuple[str, ...] = ()
    node_affinity: Mapping[str, Any] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    credentials_secret: str = ""
    token_secret: str = ""
    token_key: str = ""


def parse_endpoint(resource: Mapping[str, Any]) -> Endpoint:
    """Read an InferenceEndpointConfig, ours or AWS's. Raises InvalidResource with every bad field by its path."""
    metadata = resource.get("metadata") or {}
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace") or "default")
    problems = _envelope_problems(resource, name)
    try:
        spec = EndpointSpec.model_validate(resource.get("spec") or {})
    except ValidationError as error:
        problems += [_sentence(fault) for fault in error.errors()]
        raise InvalidResource(f"{KIND} {namespace}/{name or '(unnamed)'}", problems) from None
    if problems:
        raise InvalidResource(f"{KIND} {namespace}/{name or '(unnamed)'}", problems)
    return _endpoint(name, namespace, str(metadata.get("uid", "")), spec)


def check_same_source(existing: Endpoint, wanted: Endpoint) -> None:
    """Refuse another source under the name of an endpoint that exists. Raises InvalidResource."""
    if existing.source.uri != wanted.source.uri or existing.source.endpoint_url != wanted.source.endpoint_url:
        raise InvalidResource(
            f"{KIND} {wanted.namespace}/{wanted.name}",
            [
                f"spec.modelSourceConfig: found {wanted.source.uri}; the endpoint exists and serves "
                f"{existing.source.uri}. Give the new model another name, or say that the change is meant "
                "(apply --change-source; allow_source_change in the UI)"
            ],
        )


def _envelope_problems(resource: Mapping[str, Any], name: str) -> list[str]:
    problems = []
    if resource.get("kind") != KIND:
        problems.append(f"kind: found {resource.get('kind')!r}; expected {KIND}")
    if resource.get("apiVersion") not in (API_VERSION, AWS_API_VERSION):
        problems.append(
            f"apiVersion: found {resource.get('apiVersion')!r}; expected {API_VERSION} or {AWS_API_VERSION}"
        )
    alphabet = name.replace("-", "a")
    if not (name and name == name.lower() and alphabet.isascii() and alphabet.isalnum()) or name.strip("-") != name:
        problems.append(f"metadata.name: found {name!r}; expected lower-case letters, digits and inner hyphens")
    if len(name) > MAX_NAME:
        problems.append(f"metadata.name: found {len(name)} characters; expected at most {MAX_NAME}")
    return problems


def _sentence(fault: Any) -> str:
    path = ".".join(["spec", *(str(part) for part in fault["loc"])])
    if fault["type"] == "missing":
        return f"{path}: missing; it is required"
    if fault["type"] == "extra_forbidden":
        return f"{path}: no such field; check its spelling"
    message = str(fault["msg"]).removeprefix("Value error, ")
    found = fault.get("input")
    shown = f"found {found!r}; " if isinstance(found, str | int | float | bool) else ""
    return f"{path}: {shown}{message[:1].lower() + message[1:] if shown else message}"


def _endpoint(name: str, namespace: str, uid: str, spec: EndpointSpec) -> Endpoint:
    policy, cache = spec.cache_policy, spec.model_cache_config.weights_cache
    hub = spec.model_source_config.hugging_face_model
    token = hub.token_secret_ref if hub else None
    secret = policy.source.credentials_secret_ref
    gate = policy.gate
    return Endpoint(
        name=name,
        namespace=namespace,
        uid=uid,
        model_name=spec.model_name,
        source=_source(spec),
        replicas=spec.replicas,
        weights_cache=cache.enabled,
        host_path=cache.host_path.rstrip("/") or "/",
        worker=spec.worker,
        gate=GatePolicy(gate.mode, gate.value, gate.deadline_seconds, gate.on_deadline),
        retention=policy.retention,
        placement=policy.placement,
        routing=spec.routing,
        instance_types=(spec.instance_type,) if spec.instance_type else spec.instance_types,
        node_affinity=spec.node_affinity or {},
        tolerations=policy.tolerations,
        credentials_secret=secret.name if secret else "",
        token_secret=token.name if token else "",
        token_key=token.key if token else "",
    )


def _source(spec: EndpointSpec) -> Source:
    told, policy = spec.model_source_config, spec.cache_policy.source
    location = told.model_location.strip("/")
    revision, region = policy.revision, ""
    if told.model_source_type is SourceType.HUGGINGFACE and told.hugging_face_model:
        kind, uri = SourceKind.HUGGINGFACE, f"hf://{told.hugging_face_model.model_id}"
        revision = told.hugging_face_model.commit_sha or revision
    elif told.model_source_type is SourceType.S3 and told.s3_storage:
        kind, uri, region = SourceKind.S3, f"s3://{told.s3_storage.bucket_name}/{location}/", told.s3_storage.region
    else:
        kind, uri = SourceKind.FILE, f"file://{policy.mounted_path.rstrip('/')}/{location}"
    return Source(
        kind=kind,
        uri=uri,
        revision=revision,
        endpoint_url=policy.endpoint_url.rstrip("/"),
        region=region,
        addressing_style=policy.addressing_style,
        include=policy.include,
        exclude=policy.exclude,
        formats=policy.formats,
    )
