"""Starting one container: volumes, environment, command, process."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import infra
from infra.local.cluster.kubelet.environment import Find, NotStartable, variables_of
from infra.local.cluster.kubelet.mounts import expand, rewriter
from infra.local.cluster.kubelet.processes import Process, start
from infra.local.cluster.kubelet.volumes import mounts_of
from infra.local.cluster.logs import log_path, node_directory, pod_directory
from infra.local.cluster.objects import Object, uid_of

MESSAGE_BYTES = 4096
_MESSAGE_PATH = "/dev/termination-log"
_PROJECT = Path(infra.__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Prepared:
    """A container as it will run here. container: the pod's, with the commands of its probes rewritten."""

    container: Object
    argv: list[str]
    environment: dict[str, str]
    directory: Path


def prepare(cluster: Path, pod: Object, container: Object, attempt: int, ip: str, find: Find) -> Prepared:
    """Make the volumes and rewrite the command. NotStartable has the reason that the pod's status shall show."""
    if not container.get("command"):
        raise NotStartable(
            "ImageNeedsCommand",
            f'container "{container["name"]}" has no command: '
            "the embedded cluster runs commands, not images; set command",
        )
    directory = pod_directory(cluster, uid_of(pod))
    run, rootfs, scratch = (directory / name for name in ("run", "rootfs", "tmp"))
    for path in (run, rootfs, scratch):
        path.mkdir(parents=True, exist_ok=True)
    message = run / f"{container['name']}.{attempt}.message"
    message.touch()
    mounts = mounts_of(pod, container, directory, node_directory(cluster, pod["spec"]["nodeName"]), find)
    rewrite = rewriter({**mounts, container.get("terminationMessagePath", _MESSAGE_PATH): str(message)})
    declared = variables_of(pod, container, ip, find, rewrite)
    environment = _basic_environment(directory, scratch) | declared
    argv = [rewrite(expand(word, declared)) for word in (*container["command"], *(container.get("args") or ()))]
    argv[0] = _program(argv[0], environment)
    where = Path(rewrite(container["workingDir"])) if container.get("workingDir") else rootfs
    return Prepared(_with_rewritten_probes(container, rewrite), argv, environment, where)


def start_container(cluster: Path, pod: Object, prepared: Prepared, attempt: int) -> Process:
    name, uid = prepared.container["name"], uid_of(pod)
    run, log = pod_directory(cluster, uid) / "run", log_path(cluster, uid, name)
    try:
        return start(run, name, attempt, prepared.argv, prepared.environment, prepared.directory, log)
    except OSError as error:
        raise NotStartable("StartError", f"{prepared.argv[0]} does not start: {error.strerror}") from error


def pod_ip(uid: str) -> str:
    """A loopback address of the pod's own, always the same for the same uid.

    Other clusters on this machine draw from the same four million addresses.
    """
    digest = hashlib.sha256(uid.encode()).digest()
    return f"127.{64 + digest[0] % 64}.{digest[1]}.{1 + digest[2] % 254}"


def message_of(container: Object, process: Process, log: Path) -> str:
    """The last words of a container that ended: its termination log, or the end of its log where it asks for that."""
    written = _tail(process.message_path)
    wants_log = container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
    return _tail(log) if not written and wants_log and process.exit_code else written


def _tail(path: Path) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - MESSAGE_BYTES))
        return file.read().decode(errors="replace")


def _basic_environment(directory: Path, scratch: Path) -> dict[str, str]:
    """Nothing of the runner's own environment but PATH; PYTHONPATH so that `python -m tasks.prefetch` is found."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory / "rootfs"),
        "TMPDIR": str(scratch),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(_PROJECT),
    }


def _program(name: str, environment: dict[str, str]) -> str:
    if name in ("python", "python3"):
        return sys.executable
    found = shutil.which(name, path=environment["PATH"])
    if found is None:
        raise NotStartable("StartError", f'"{name}" is not a program on PATH of this machine')
    return found


def _with_rewritten_probes(container: Object, rewrite: Callable[[str], str]) -> Object:
    changed = dict(container)
    for kind in ("readinessProbe", "livenessProbe"):
        command = (container.get(kind) or {}).get("exec", {}).get("command")
        if command:
            changed[kind] = {**container[kind], "exec": {"command": [rewrite(word) for word in command]}}
    return changed
