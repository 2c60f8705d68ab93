"""One rollout at a time per endpoint: a Kubernetes Lease, renewed while it is held.

The lock lives where the endpoint lives, so it holds across Prefect servers and survives their restarts. A holder that
died is replaced as soon as its death is known: at once on the same machine, otherwise when its lease has run out.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tasks.kube import AlreadyExists, Conflict, Kube, KubeError, NotFound, Object
from tasks.stop import pause

DURATION_S = 15
POLL_S = 0.5


class Held(Exception):
    """Another run holds the lease and did not let go in time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody wants to hold. owner: object whose deletion takes the lease with it."""

    name: str
    namespace: str
    holder: str
    owner: Object


@contextlib.contextmanager
def hold(
    kube: Kube, claim: Claim, *, wait_s: float, say: Callable[[str], None], lost: Callable[[str], None]
) -> Iterator[None]:
    """Hold the lease during the block. `lost` is called, from another thread, when it can no longer be renewed."""
    acquire(kube, claim, wait_s=wait_s, say=say)
    ended = threading.Event()
    thread = threading.Thread(target=_renew, args=(kube, claim, ended, lost), name=f"lease {claim.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _release(kube, claim)


def acquire(kube: Kube, claim: Claim, *, wait_s: float, say: Callable[[str], None]) -> None:
    """Wait until the lease is ours, at most `wait_s`."""
    deadline = time.monotonic() + wait_s
    seen: tuple[str, str] = ("", "")
    seen_at = time.monotonic()
    while True:
        lease = _create_or_get(kube, claim)
        current = (str(lease["spec"].get("holderIdentity") or ""), str(lease["spec"].get("renewTime") or ""))
        if current != seen:
            if current[0] not in ("", claim.holder, seen[0]):
                say(f"{claim.name} is held by {current[0]}; waiting for it to end")
            seen, seen_at = current, time.monotonic()
        expired = time.monotonic() - seen_at > DURATION_S or _long_expired(current[1])
        if current[0] == claim.holder or (
            (not current[0] or expired or is_dead(current[0])) and _take(kube, claim, lease)
        ):
            return
        if time.monotonic() > deadline:
            raise Held(
                f"{claim.name} is held by {current[0]} for longer than {wait_s:.0f} s. "
                "Wait for that run to end, or cancel it, then run again."
            )
        pause(POLL_S)


def process_identity() -> str:
    """Who this process is, so that others on this machine can tell whether it still lives."""
    return f"{_machine()}/{os.getpid()}-{_start_ticks(os.getpid())}"


def is_dead(holder: str) -> bool:
    """Whether `holder` ran in this machine's process namespace and is gone. Unknown holders count as alive."""
    machine, _, rest = holder.partition("/")
    pid, _, ticks = rest.partition("/")[0].partition("-")
    return machine == _machine() and pid.isdigit() and _start_ticks(int(pid)) != ticks


def _create_or_get(kube: Kube, claim: Claim) -> Object:
    owner = claim.owner
    body: Object = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": claim.name,
            "namespace": claim.namespace,
            "labels": {"app.kubernetes.io/managed-by": "warmpath"},
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                }
            ],
        },
        "spec": _spec(claim.holder),
    }
    while True:
        with contextlib.suppress(AlreadyExists):
            return kube.create(body)
        with contextlib.suppress(NotFound):
            return kube.get("Lease", claim.name, claim.namespace)


def _take(kube: Kube, claim: Claim, lease: Object) -> bool:
    """Whether the lease, as just seen, could be taken over."""
    body = {"metadata": {"resourceVersion": lease["metadata"]["resourceVersion"]}, "spec": _spec(claim.holder)}
    try:
        kube.patch("Lease", claim.name, body, claim.namespace)
    except (Conflict, NotFound):
        return False
    return True


def _renew(kube: Kube, claim: Claim, ended: threading.Event, lost: Callable[[str], None]) -> None:
    renewed_at = time.monotonic()
    while not ended.wait(DURATION_S / 3):
        try:
            lease = kube.get("Lease", claim.name, claim.namespace)
            if lease["spec"].get("holderIdentity") != claim.holder:
                lost(f"{claim.name} was taken over by {lease['spec'].get('holderIdentity') or 'nobody'}")
                return
            if _take(kube, claim, lease):
                renewed_at = time.monotonic()
        except KubeError as error:
            # Others may take it when it has run out; we must have stopped by then.
            if time.monotonic() - renewed_at > DURATION_S * 2 / 3:
                lost(f"{claim.name} could not be renewed: {error}")
                return


def _release(kube: Kube, claim: Claim) -> None:
    # A lease that is left behind runs out by itself, so a failure here must not hide the run's own outcome.
    with contextlib.suppress(KubeError):
        lease = kube.get("Lease", claim.name, claim.namespace)
        if lease["spec"].get("holderIdentity") == claim.holder:
            version = lease["metadata"]["resourceVersion"]
            body = {"metadata": {"resourceVersion": version}, "spec": {"holderIdentity": None}}
            kube.patch("Lease", claim.name, body, claim.namespace)


def _spec(holder: str) -> Object:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": DURATION_S, "renewTime": now}


def _long_expired(renew_time: str) -> bool:
    # Clocks of machines differ; a lease that is this old has run out on any of them.
    if not renew_time:
        return True
    renewed = datetime.fromisoformat(renew_time.replace("Z", "+00:00"))
    return (datetime.now(UTC) - renewed).total_seconds() > 4 * DURATION_S


def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    namespace = Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    return f"{socket.gethostname()}.{boot}.{namespace}"


def _start_ticks(pid: int) -> str:
    """Start time of `pid` in clock ticks since boot; "" when there is no such process, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
