"""The schema of an InferenceEndpointConfig: AWS's fields under its names, ours (`cachePolicy`, `routing`) beside them.

Fields that Warmpath does not act on are accepted and left alone; unknown ones are refused, as they are usually typos.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from router.config import RoutingSettings
from tasks.plan.types import Formats, GateMode, OnDeadline

KIND = "InferenceEndpointConfig"
API_VERSION = "warmpath.dev/v1alpha1"
AWS_API_VERSION = "inference.sagemaker.aws.amazon.com/v1"
DEFAULT_HOST_PATH = "/opt/dlami/nvme"
DEFAULT_MOUNT_PATH = "/opt/ml/model"

Json = dict[str, Any]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=255)]


def check_absolute(path: str) -> str:
    """An absolute path without "..": it is mounted from the node."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f'{path!r} is not an absolute path without "..", such as {DEFAULT_HOST_PATH}')
    return path


class Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, use_attribute_docstrings=True)


class SourceType(StrEnum):
    S3 = "s3"
    FSX = "fsx"
    HUGGINGFACE = "huggingface"
    KUBERNETES_VOLUME = "kubernetesVolume"


class S3Storage(Schema):
    bucket_name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$")]
    """The bucket."""
    region: Annotated[str, Field(min_length=1)]
    """Its region."""


class FsxStorage(Schema):
    file_system_id: Annotated[str, Field(min_length=1)]
    """FSx file system id."""
    dns_name: str = ""
    """Its DNS name."""
    mount_name: str = ""
    """Its mount name."""


class TokenSecretRef(Schema):
    name: ObjectName
    """The Secret."""
    key: Annotated[str, Field(min_length=1)]
    """Its key that holds the token."""
    optional: bool = False
    """Whether pods may start without it."""


class HuggingFaceModel(Schema):
    model_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]+/[a-zA-Z0-9_.-]+$")]
    """`org/model`."""
    commit_sha: Annotated[str, Field(alias="commitSHA", pattern=r"^([0-9a-f]{40})?$")] = ""
    """Full commit; empty follows cachePolicy.source.revision, else the default branch."""
    token_secret_ref: TokenSecretRef | None = None
    """The Secret with the token of a gated model."""


class ModelSourceConfig(Schema):
    model_source_type: SourceType
    """s3, fsx or huggingface."""
    model_location: str = ""
    """Prefix in the bucket, or path on the file system."""
    prefetch_enabled: bool = False
    """AWS's in-memory prefetch; accepted, not acted on."""
    s3_storage: Annotated[S3Storage | None, Field(alias="s3Storage")] = None
    """Required for s3."""
    fsx_storage: FsxStorage | None = None
    """Required for fsx."""
    hugging_face_model: HuggingFaceModel | None = None
    """Required for huggingface."""

    @model_validator(mode="after")
    def _has_its_block(self) -> Self:
        blocks = {
            SourceType.S3: ("s3Storage", self.s3_storage),
            SourceType.FSX: ("fsxStorage", self.fsx_storage),
            SourceType.HUGGINGFACE: ("huggingFaceModel", self.hugging_face_model),
        }
        if self.model_source_type not in blocks:
            raise ValueError(
                f"modelSourceType {self.model_source_type} cannot be cached: the volume is on the node already; "
                "use s3, fsx or huggingface"
            )
        name, block = blocks[self.model_source_type]
        if block is None:
            raise ValueError(f"modelSourceType {self.model_source_type} needs {name}")
        if self.model_source_type is not SourceType.HUGGINGFACE and not self.model_location.strip("/"):
            raise ValueError("modelLocation is empty: it would cache the whole bucket; name the model's folder")
        return self


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
    _absolute = field_validator("mount_path")(check_absolute)


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
            raise ValueError(f"value {self.value} is not a percentage of 1 to 100")
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
    DELETE = "Delete"
    RETAIN = "Retain"


class Placement(StrEnum):
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


class EndpointSpec(Schema):
    model_name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$")]
    """Name of the model; requests may name it."""
    model_source_config: ModelSourceConfig
    """Where the weights come from."""
    worker: WorkerSpec
    """The engine."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Instances wanted."""
    endpoint_name: str = ""
    """Name in the router; empty takes the object's."""
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
    kubernetes: Json | None = None
    """AWS's; accepted."""
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

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        if self.instance_type and self.instance_types:
            raise ValueError("instanceType and instanceTypes exclude each other; keep one")
        fsx = self.model_source_config.model_source_type is SourceType.FSX
        if fsx:
            check_absolute(self.cache_policy.source.mounted_path or "cachePolicy.source.mountedPath (empty)")
        return self
