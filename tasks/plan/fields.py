"""What the fields of a resource are made of: the base of their schemas, and the types that several share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from tasks.plan.problems import wrong

DEFAULT_HOST_PATH = "/opt/dlami/nvme"
DEFAULT_MOUNT_PATH = "/opt/ml/model"

Json = dict[str, Any]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
AbsolutePath = Annotated[str, Field(min_length=1, max_length=255)]


def check_absolute(path: str) -> str:
    """An absolute path below the root and without "..": it is mounted from the node."""
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or not any(parts):
        raise wrong("", path, 'an absolute path below / and without ".."', f"The usual one is {DEFAULT_HOST_PATH}.")
    return path


def check_mount(path: str) -> str:
    """Where the weights go in the engine's container; /warmpath is taken by the node's store and the manifest."""
    if path.rstrip("/") == "/warmpath" or path.startswith("/warmpath/"):
        raise wrong("", path, "a path outside of /warmpath", f"The usual one is {DEFAULT_MOUNT_PATH}.")
    return check_absolute(path)


class Schema(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, use_attribute_docstrings=True)
