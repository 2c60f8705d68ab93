"""A pod's volumes as directories, and where each mount of a container really is."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from infra.local.cluster.kubelet.environment import Find, NotStartable, data_of, found
from infra.local.cluster.objects import Object


def mounts_of(pod: Object, container: Object, directory: Path, node_root: Path, find: Find) -> dict[str, str]:
    """mountPath to real path, for one container; makes the volumes it mounts."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or ()}
    mounts: dict[str, str] = {}
    for mount in container.get("volumeMounts") or ():
        real = _volume(volumes[mount["name"]], directory, node_root, find)
        if mount.get("subPath"):
            real = real / _inside(mount["subPath"], f"subPath of {mount['name']}")
            if not real.exists():
                real.mkdir(parents=True)
        mounts[mount["mountPath"]] = str(real)
    return mounts


def _volume(volume: Object, directory: Path, node_root: Path, find: Find) -> Path:
    own = directory / "volumes" / str(volume["name"])
    if "hostPath" in volume:
        return _host_path(volume["hostPath"], node_root)
    if "emptyDir" in volume:
        own.mkdir(parents=True, exist_ok=True)
        return own
    for kind, field in (("ConfigMap", "configMap"), ("Secret", "secret")):
        if field in volume:
            return _project(kind, volume[field], own, find)
    known = "hostPath, emptyDir, configMap and secret"
    raise NotStartable("FailedMount", f'volume "{volume["name"]}": only {known} are known here')


def _host_path(source: Object, node_root: Path) -> Path:
    real = node_root / _inside(source["path"].lstrip("/"), "hostPath")
    match source.get("type") or "DirectoryOrCreate":
        case "DirectoryOrCreate":
            real.mkdir(parents=True, exist_ok=True)
        case "Directory" if not real.is_dir():
            raise NotStartable("FailedMount", f"hostPath type check failed: {source['path']} is not a directory")
        case "File" if not real.is_file():
            raise NotStartable("FailedMount", f"hostPath type check failed: {source['path']} is not a file")
        case "FileOrCreate":
            real.parent.mkdir(parents=True, exist_ok=True)
            real.touch()
    return real


def _project(kind: str, source: Object, own: Path, find: Find) -> Path:
    """Keys as files; a Secret's only for the owner of this process."""
    own.mkdir(parents=True, exist_ok=True, mode=0o700 if kind == "Secret" else 0o755)
    obj = found(kind, source, find)
    data = data_of(obj) if obj else {}
    items = source.get("items") or [{"key": key, "path": key} for key in data]
    for item in items:
        if item["key"] not in data:
            if source.get("optional"):
                continue
            raise NotStartable("FailedMount", f'{kind.lower()} has no key "{item["key"]}"')
        path = own / _inside(item["path"], f"path of {item['key']}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.touch(mode=0o600 if kind == "Secret" else 0o644)
        path.write_bytes(data[item["key"]])
    return own


def _inside(path: str, what: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts:
        raise NotStartable("FailedMount", f'{what} is "{path}": it must stay inside, without ".."')
    return relative
