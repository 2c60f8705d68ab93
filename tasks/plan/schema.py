"""The schema of an InferenceEndpointConfig: AWS's fields under its names, ours (`cachePolicy`, `routing`) beside them.

Fields that Warmpath does not act on are accepted and left alone; unknown ones are refused, as they are usually typos.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from router.config import RoutingSettings
from tasks.plan.fields import (
    DEFAULT_HOST_PATH,
    DEFAULT_MOUNT_PATH,
    AbsolutePath,
    Json,
    ObjectName,
    Schema,
    check_absolute,
    check_mount,
)
from tasks.plan.policy import CachePolicy
from tasks.plan.problems import wrong
from tasks.plan.source_config import ModelSourceConfig, SourceType

KIND = "InferenceEndpointConfig"
API_VERSION = "warmpath.dev/v1alpha1"
AWS_API_VERSION = "inference.sagemaker.aws.amazon.com/v1"
RESERVED_VOLUMES = frozenset({"warmpath-store", "warmpath-manifest", "source"})
# Without effect here whatever they say; those with an effect only on AWS's own services are no loss.
NOT_ACTED_ON = frozenset(
    {
        "auto_scaling_spec",
        "data_capture",
        "dns_config",
        "intelligent_routing_spec",
        "kv_cache_spec",
        "load_balancer",
        "metrics",
        "pd_spec",
        "tags",
        "tls_config",
    }
)


class WeightsCache(Schema):
    enabled: bool = False
    """Whether nodes keep the weights."""
    host_path: AbsolutePath = DEFAULT_HOST_PATH
    """Absolute path of the NVMe on the node."""
    _absolute = field_validator("host_path")(check_absolute)


class ImageCache(Schema):
    enabled: bool
    """Whether nodes keep the image."""


class ModelCacheConfig(Schema):
    weights_cache: WeightsCache = WeightsCache()
    """Weights on NVMe."""
    image_cache: ImageCache | None = None
    """The engine's image."""


class InvocationPort(Schema):
    container_port: Annotated[int, Field(ge=1, le=65535)]
    """Port of the engine."""
    name: Literal["http", "grpc"] = "http"
    """http or grpc."""


class ModelVolumeMount(Schema):
    name: ObjectName
    """Name of the volume."""
    mount_path: AbsolutePath = DEFAULT_MOUNT_PATH
    """Where the engine finds the model."""
    _mountable = field_validator("mount_path")(check_mount)


class Probes(Schema):
    liveness_probe: Json | None = None
    """As Kubernetes'."""
    readiness_probe: Json | None = None
    """As Kubernetes'; GET /health on the engine's port when absent."""
    startup_probe: Json | None = None
    """As Kubernetes'."""


class WorkerSpec(Schema):
    image: Annotated[str, Field(min_length=1)]
    """The engine's image."""
    model_invocation_port: InvocationPort
    """Where it listens."""
    model_volume_mount: ModelVolumeMount
    """Where it finds the weights."""
    resources: Json
    """Requests and limits, as Kubernetes'."""
    command: tuple[str, ...] = ()
    """Entry point; empty takes the image's."""
    args: tuple[str, ...] = ()
    """Its arguments; $(POD_IP) is the pod's address."""
    environment_variables: tuple[Json, ...] = ()
    """As Kubernetes' env."""
    probes: Probes = Probes()
    """As Kubernetes'."""
    request_limits: Json | None = None
    """Accepted, not acted on."""
    working_dir: str = ""
    """Working directory."""

    @field_validator("environment_variables")
    @classmethod
    def _are_variables(cls, variables: tuple[Json, ...]) -> tuple[Json, ...]:
        for variable in variables:
            name, value = variable.get("name"), variable.get("value", "")
            if not isinstance(name, str) or not name or "=" in name:
                raise wrong("", variables, 'a list in which each variable has a name without "="')
            if not isinstance(value, str):
                raise wrong("", variables, f"text as the value of {name}", "Put numbers and true or false in quotes.")
        return variables


class KubernetesSpec(Schema):
    init_containers: tuple[Json, ...] = ()
    """Containers that run before the engine, after the weights are there."""
    volumes: tuple[Json, ...] = ()
    """Further volumes of the pod."""
    scheduler_name: str = ""
    """Scheduler; empty is the cluster's own."""
    service_account_name: str = ""
    """Identity of the engine's pods and of the Jobs that fetch, where it gives access to the source."""


class EndpointSpec(Schema):
    model_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")]
    """Name of the model; requests may name it."""
    model_source_config: ModelSourceConfig
    """Where the weights come from."""
    worker: WorkerSpec
    """The engine."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Instances wanted."""
    endpoint_name: Annotated[str, Field(pattern=r"^$|^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")] = ""
    """AWS's: name of a SageMaker endpoint; accepted."""
    instance_type: Annotated[str, Field(pattern=r"^(ml\..+)?$")] = ""
    """Type of node."""
    instance_types: tuple[str, ...] = ()
    """Types of nodes, in order of preference."""
    node_affinity: Json | None = None
    """Further constraints, as Kubernetes'."""
    model_cache_config: ModelCacheConfig = ModelCacheConfig()
    """What nodes keep."""
    cache_policy: CachePolicy = CachePolicy()
    """How caches are filled and kept."""
    routing: RoutingSettings = RoutingSettings()
    """How requests are spread."""
    initial_replica_count: Annotated[int | None, Field(alias="InitialReplicaCount")] = None
    """Deprecated by AWS; no effect."""
    invocation_endpoint: str = "invocations"
    """AWS's; accepted."""
    max_deploy_time_in_seconds: int = 3600
    """AWS's; accepted."""
    model_version: str = ""
    """AWS's; accepted."""
    auto_scaling_spec: Json | None = None
    """AWS's; accepted."""
    data_capture: Json | None = None
    """AWS's; accepted."""
    dns_config: Json | None = None
    """AWS's; accepted."""
    intelligent_routing_spec: Json | None = None
    """AWS's; accepted: `routing` says it here."""
    kubernetes: KubernetesSpec = KubernetesSpec()
    """Additions to the engine's pods."""
    kv_cache_spec: Json | None = None
    """AWS's; accepted."""
    load_balancer: Json | None = None
    """AWS's; accepted."""
    metrics: Json | None = None
    """AWS's; accepted."""
    pd_spec: Json | None = None
    """AWS's; accepted."""
    tags: tuple[Json, ...] = ()
    """AWS's; accepted."""
    tls_config: Json | None = None
    """AWS's; accepted."""
    metrics_sidecar_resources: Json | None = None
    """AWS's; accepted."""
    metrics_collector_resources: Json | None = None
    """AWS's; accepted."""
    s3_uploader_resources: Annotated[Json | None, Field(alias="s3UploaderResources")] = None
    """AWS's; accepted."""

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.instance_type and self.instance_types:
            raise wrong("instanceTypes", self.instance_types, "nothing beside instanceType", "Keep one of the two.")
        told, policy = self.model_source_config, self.cache_policy.source
        if told.model_source_type is SourceType.FSX:
            self._check_mounted(policy.mounted_path)
        hub = told.hugging_face_model
        if hub and hub.commit_sha and policy.revision not in ("", hub.commit_sha):
            advice = "modelSourceConfig.huggingFaceModel.commitSHA names the revision already."
            raise wrong("cachePolicy.source.revision", policy.revision, f"nothing, or {hub.commit_sha}", advice)
        reserved = {self.worker.model_volume_mount.name, *RESERVED_VOLUMES}
        clash = next((v.get("name") for v in self.kubernetes.volumes if v.get("name") in reserved), None)
        if clash:
            raise wrong("kubernetes.volumes", clash, f"names other than {', '.join(sorted(reserved))}")
        return self

    def _check_mounted(self, path: str) -> None:
        if not path.startswith("/") or ".." in path.split("/") or not path.strip("/"):
            advice = "Warmpath reads the file system where nodes have mounted it."
            raise wrong("cachePolicy.source.mountedPath", path, "an absolute path such as /fsx", advice)


def accepted_only(spec: EndpointSpec) -> tuple[str, ...]:
    """Fields that are set and that Warmpath does not act on, as the user wrote them."""
    fields = EndpointSpec.model_fields
    said = {fields[name].alias or name for name in spec.model_fields_set if name in NOT_ACTED_ON}
    image = spec.model_cache_config.image_cache
    return tuple(sorted(said | ({"modelCacheConfig.imageCache"} if image and image.enabled else set())))


def field_names() -> frozenset[str]:
    """Every field name of the schema, as users write them."""
    models: list[type[BaseModel]] = [RoutingSettings, *Schema.__subclasses__()]
    return frozenset(field.alias or name for model in models for name, field in model.model_fields.items())
