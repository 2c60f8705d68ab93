"""The list of a revision's files, whose digest is the revision's identity.

digest = sha256 over one line per file, sorted by path: the JSON list `[content key, size in bytes, path]`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tasks.plan.pins import content_key
from tasks.plan.types import Formats, Manifest, ModelFile, Source, SourceKind

MAX_PART_BYTES = 255
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


class InvalidManifest(ValueError):
    """A manifest that must not reach a disk; the message names the file and what is wrong with it."""


def check_path(path: str) -> None:
    """Refuse what could leave the model's directory or mean another file on another system."""
    parts = path.split("/")
    faults = (
        (path == "", "it is empty"),
        (path.startswith("/"), "it is absolute"),
        (any(part in ("", ".", "..") for part in parts), 'it has an empty, "." or ".." part'),
        ("\\" in path, "it has a backslash"),
        (any(ord(character) < 32 or ord(character) == 127 for character in path), "it has a control character"),
        (any(len(part.encode()) > MAX_PART_BYTES for part in parts), f"a part is longer than {MAX_PART_BYTES} bytes"),
    )
    for wrong, why in faults:
        if wrong:
            raise InvalidManifest(f"path {path!r} is refused: {why}; expected a relative path below the model")


def build_manifest(source: Source, revision: str, files: Iterable[ModelFile]) -> Manifest:
    """Sorted, checked and named by its digest. revision "": the first 12 characters of the digest.

    Raises InvalidManifest for bad paths, sizes or digests, for two files of one name, and for no file at all.
    """
    ordered = tuple(sorted(files, key=lambda file: file.path))
    _check(source, ordered)
    lines = [json.dumps([content_key(source, file), file.size_bytes, file.path]) + "\n" for file in ordered]
    hexadecimal = hashlib.sha256("".join(lines).encode()).hexdigest()
    return Manifest(source, revision or hexadecimal[:12], ordered, f"sha256:{hexadecimal}")


def manifest_to_json(manifest: Manifest) -> str:
    """One line of JSON; `manifest_from_json` gives the same manifest back."""
    return json.dumps(asdict(manifest), separators=(",", ":"), sort_keys=True)


def manifest_from_json(text: str) -> Manifest:
    """Read and check a manifest: what it says of itself must be what its lines give."""
    try:
        told: dict[str, Any] = json.loads(text)
        source = _source(told["source"])
        files = [ModelFile(**file) for file in told["files"]]
        revision, digest = str(told["revision"]), str(told["digest"])
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidManifest(f"not a manifest: {error!r}; expected source, revision, files and digest") from error
    manifest = build_manifest(source, revision, files)
    if manifest.digest != digest:
        raise InvalidManifest(f"the manifest says {digest}, its files give {manifest.digest}: it was changed")
    return manifest


@dataclass(frozen=True, slots=True)
class Difference:
    """What a node that holds `old` needs for `new`."""

    kept_bytes: int
    fetch_bytes: int
    fetch_paths: tuple[str, ...]


def diff_manifests(old: Manifest | None, new: Manifest) -> Difference:
    """Files whose content the old revision has already, under whatever name, are kept."""
    have = {content_key(old.source, file) for file in old.files} if old else set()
    fetch = [file for file in new.files if content_key(new.source, file) not in have]
    fetch_bytes = sum(file.size_bytes for file in fetch)
    return Difference(new.size_bytes - fetch_bytes, fetch_bytes, tuple(file.path for file in fetch))


def _check(source: Source, files: tuple[ModelFile, ...]) -> None:
    if not files:
        raise InvalidManifest(f"{source.uri} has no file of a model; check the location and the include patterns")
    folded: dict[str, str] = {}
    for file in files:
        check_path(file.path)
        if file.size_bytes < 0:
            raise InvalidManifest(f"{file.path}: size {file.size_bytes} is refused; expected 0 or more bytes")
        if file.digest and not SHA256.fullmatch(file.digest):
            raise InvalidManifest(f"{file.path}: digest {file.digest!r} is refused; expected sha256: and 64 hex digits")
        if not (file.digest or file.pin) or any(c.isspace() for c in file.pin):
            raise InvalidManifest(
                f"{file.path}: pin {file.pin!r} does not bind its content; expected a digest or a pin"
            )
        if other := folded.get(file.path.casefold()):
            raise InvalidManifest(f"{other} and {file.path} are the same file on a disk that folds case; rename one")
        folded[file.path.casefold()] = file.path


def _source(told: dict[str, Any]) -> Source:
    values = {**told, "kind": SourceKind(told["kind"]), "formats": Formats(told["formats"])}
    return Source(**{**values, "include": tuple(told["include"]), "exclude": tuple(told["exclude"])})
