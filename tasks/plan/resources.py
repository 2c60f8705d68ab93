"""An endpoint as plans see it: read from its resource, checked whole, every fault told at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from router.config import RoutingSettings
from tasks.plan.policy import Placement, Retention
from tasks.plan.problems import InvalidResource, Problem, problems_of, shown
from tasks.plan.schema import (
    API_VERSION,
    AWS_API_VERSION,
    KIND,
    EndpointSpec,
    KubernetesSpec,
    WorkerSpec,
    accepted_only,
    field_names,
)
from tasks.plan.source_config import SourceType
from tasks.plan.types import GatePolicy, Source, SourceKind

__all__ = ["Endpoint", "InvalidResource", "check_same_source", "parse_endpoint"]

# A cache's name is `<endpoint>-<12 hex digits>` and must stay a DNS label, as must the Service's, which is the name.
MAX_NAME = 50
NAME = re.compile(rf"[a-z]([-a-z0-9]{{0,{MAX_NAME - 2}}}[a-z0-9])?")
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a user wants of one endpoint. Secrets are named here, never held.

    tolerations: of its pods and Jobs, with those that its extended resources imply.
    source_config: modelSourceConfig as the user wrote it. ignored: fields that are set and not acted on.
    """

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
    token_optional: bool = False
    kubernetes: KubernetesSpec = field(default_factory=KubernetesSpec)
    source_config: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()


def parse_endpoint(resource: Mapping[str, Any]) -> Endpoint:
    """Read an InferenceEndpointConfig, ours or AWS's. Raises InvalidResource with every bad field by its path."""
    metadata = resource.get("metadata")
    named: Mapping[str, Any] = metadata if isinstance(metadata, Mapping) else {}
    name, namespace = str(named.get("name") or ""), str(named.get("namespace") or "default")
    problems = _envelope_problems(resource, name, namespace)
    try:
        # As JSON and strict, as the API would check it: "3" is no number and 8000 is no text.
        told = json.dumps({} if resource.get("spec") is None else resource["spec"], default=str)
        spec = EndpointSpec.model_validate_json(told, strict=True)
    except ValidationError as error:
        problems += problems_of(error.errors(include_url=False), field_names())
        raise InvalidResource(_title(namespace, name), problems) from None
    if problems:
        raise InvalidResource(_title(namespace, name), problems)
    return _endpoint(name, namespace, str(named.get("uid", "")), spec, resource["spec"]["modelSourceConfig"])


def check_same_source(existing: Endpoint, wanted: Endpoint) -> None:
    """Refuse another source under the name of an endpoint that exists. Raises InvalidResource."""
    before, after = existing.source, wanted.source
    advice = (
        "Give the new model another name, or say that the change is meant "
        "(apply --change-source; allow_source_change in the UI)."
    )
    problems = []
    if before.uri != after.uri:
        expected = f"{before.uri}, which this endpoint serves"
        problems.append(Problem("spec.modelSourceConfig", after.uri, expected, advice))
    if before.endpoint_url != after.endpoint_url:
        expected = f"{before.endpoint_url or 'none'}, where this endpoint's weights come from"
        problems.append(
            Problem("spec.cachePolicy.source.endpointUrl", after.endpoint_url or "missing", expected, advice)
        )
    if problems:
        raise InvalidResource(_title(wanted.namespace, wanted.name), problems)


def _title(namespace: str, name: str) -> str:
    return f"{KIND} {namespace}/{name or '(unnamed)'}"


def _envelope_problems(resource: Mapping[str, Any], name: str, namespace: str) -> list[Problem]:
    problems = []
    kind, version = resource.get("kind"), resource.get("apiVersion")
    if kind != KIND:
        problems.append(Problem("kind", shown(kind) if kind else "missing", KIND))
    if version not in (API_VERSION, AWS_API_VERSION):
        found = shown(version) if version else "missing"
        problems.append(Problem("apiVersion", found, f"{API_VERSION} or {AWS_API_VERSION}"))
    if not NAME.fullmatch(name):
        expected = f'1 to {MAX_NAME} lower-case letters, digits and "-", the first a letter and the last no "-"'
        problems.append(Problem("metadata.name", shown(name) if name else "missing", expected))
    if not NAMESPACE.fullmatch(namespace):
        problems.append(Problem("metadata.namespace", shown(namespace), 'lower-case letters, digits and inner "-"'))
    return problems


def _endpoint(name: str, namespace: str, uid: str, spec: EndpointSpec, told: Mapping[str, Any]) -> Endpoint:
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
        host_path=cache.host_path.rstrip("/"),
        worker=spec.worker,
        gate=GatePolicy(gate.mode, gate.value, gate.deadline_seconds, gate.on_deadline),
        retention=policy.retention,
        placement=policy.placement,
        routing=spec.routing,
        instance_types=(spec.instance_type,) if spec.instance_type else spec.instance_types,
        node_affinity=spec.node_affinity or {},
        tolerations=(*policy.tolerations, *_implied_tolerations(spec.worker.resources)),
        credentials_secret=secret.name if secret else "",
        token_secret=token.name if token else "",
        token_key=token.key if token else "",
        token_optional=token.optional if token else False,
        kubernetes=spec.kubernetes,
        source_config=told,
        ignored=accepted_only(spec),
    )


def _implied_tolerations(resources: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Nodes with accelerators are tainted with the resource's name; who asks for the resource may go there.

    Clusters add this to pods by themselves only where an admission plugin is on, and never to the Jobs that fetch.
    """
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return [{"key": name, "operator": "Exists", "effect": "NoSchedule"} for name in sorted(asked) if "/" in name]


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
