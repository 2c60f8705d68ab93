"""`modelSourceConfig`: where the weights come from, in AWS's fields."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.plan.fields import ObjectName, Schema
from tasks.plan.problems import wrong


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
    def _names_one_model(self) -> Self:
        kind = self.model_source_type
        match kind:
            case SourceType.S3 if self.s3_storage is None:
                raise wrong("s3Storage", None, "bucketName and region", "modelSourceType s3 needs it.")
            case SourceType.FSX if self.fsx_storage is None:
                raise wrong("fsxStorage", None, "fileSystemId", "modelSourceType fsx needs it.")
            case SourceType.HUGGINGFACE if self.hugging_face_model is None:
                raise wrong("huggingFaceModel", None, "modelId", "modelSourceType huggingface needs it.")
            case SourceType.HUGGINGFACE if self.model_location.strip("/"):
                raise wrong(
                    "modelLocation",
                    self.model_location,
                    "nothing for huggingface",
                    "Choose files with cachePolicy.source.include.",
                )
            case SourceType.KUBERNETES_VOLUME:
                advice = "A volume of the cluster cannot be cached: its files are on the node already."
                raise wrong("modelSourceType", kind.value, "s3, fsx or huggingface", advice)
            case SourceType.S3 | SourceType.FSX:
                self._check_location("bucket" if kind is SourceType.S3 else "file system")
        return self

    def _check_location(self, whole: str) -> None:
        parts = self.model_location.strip("/").split("/")
        if parts == [""]:
            advice = f"Empty would cache the whole {whole}: name the model's own folder."
            raise wrong("modelLocation", self.model_location, "a folder such as models/llama-3-8b/", advice)
        if any(part in ("", ".", "..") for part in parts):
            raise wrong("modelLocation", self.model_location, 'a folder without empty, "." and ".." parts')
