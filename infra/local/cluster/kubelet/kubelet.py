"""Runs the pods that are bound to nodes, and tells how they are. One instance plays the kubelets of all nodes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from infra.local.cluster.actions import Action, Delete, Note, status_change
from infra.local.cluster.kubelet.containers import Prepared, message_of, pod_ip, prepare, start_container
from infra.local.cluster.kubelet.environment import NotStartable
from infra.local.cluster.kubelet.lifecycle import Facts, Seen, plan_pod
from infra.local.cluster.kubelet.probes import Prober
from infra.local.cluster.kubelet.processes import Process, adopt
from infra.local.cluster.logs import log_path, pod_directory
from infra.local.cluster.objects import MALFORMED, Object, is_deleting, namespace_of, parse_time, uid_of
from infra.local.cluster.state import State

# When to try again what is blocked by a missing object, and what waits for a process to start or to die.
RETRY_S = 1.0
SOON_S = 0.05
FINISHED = ("Succeeded", "Failed")


@dataclass(slots=True)
class _Running:
    """What the kubelet holds of one pod. Everything here can be found again on disk."""

    pod: Object
    attempts: dict[str, list[Process]]
    due_s: float = 0.0
    blocked: dict[str, tuple[str, str]] = field(default_factory=dict)
    kill_at: dict[str, float] = field(default_factory=dict)  # container → when SIGTERM has had its time

    def processes(self) -> Iterator[Process]:
        """The newest attempt of each container."""
        return (attempts[-1] for attempts in self.attempts.values() if attempts)


class Kubelet:
    def __init__(self, cluster: Path, state: State) -> None:
        self._cluster = cluster
        self._state = state
        self._running: dict[str, _Running] = {}
        self._dying: dict[str, list[Process]] = {}
        self._prober = Prober()

    def step(self, now_s: float) -> list[Action]:
        """Look at every pod for which something happened or a time has come."""
        for uid in self._prober.collect():
            if uid in self._running:
                self._running[uid].due_s = 0.0
        self._bury()
        actions: list[Action] = []
        for uid, running in list(self._running.items()):
            ended = [process for process in running.processes() if process.exit_code is None and not process.poll()]
            if ended or running.due_s <= now_s:
                actions += self._sync(uid, running, now_s)
        return actions

    def pod_changed(self, pod: Object) -> None:
        """A pod is new, bound, changed or deleting."""
        uid = uid_of(pod)
        if not pod["spec"].get("nodeName"):
            return
        known = self._running.get(uid)
        if known is not None:
            known.pod, known.due_s = pod, 0.0
        elif (pod.get("status") or {}).get("phase") not in FINISHED or is_deleting(pod):
            self._running[uid] = _Running(pod, adopt(pod_directory(self._cluster, uid) / "run"))
            self._resume_probes(uid)

    def pod_gone(self, uid: str) -> None:
        """The pod is no longer in the store: end what runs, remove its directory."""
        running = self._running.pop(uid, None)
        self._prober.forget(uid)
        attempts = running.attempts if running else adopt(pod_directory(self._cluster, uid) / "run")
        self._dying[uid] = [attempt[-1] for attempt in attempts.values()]
        for process in self._dying[uid]:
            if process.poll():
                process.signal(signal.SIGKILL)
        self._bury()

    def config_changed(self) -> None:
        """A ConfigMap or Secret changed: what waits for one may start."""
        for running in self._running.values():
            if running.blocked:
                running.due_s = 0.0

    def remove_leftovers(self) -> None:
        """End and remove what earlier runs left of pods that are gone."""
        known = {uid_of(pod) for pod in self._state.all("Pod")}
        for path in (self._cluster / "pods").glob("*"):
            if path.name not in known:
                self.pod_gone(path.name)

    def stop(self, grace_s: float) -> None:
        """End every container; the pods stay in the store and start again with the next runner."""
        alive = [process for running in self._running.values() for process in running.processes() if process.poll()]
        deadline, untold = time.monotonic() + grace_s, alive
        while (alive := [process for process in alive if process.poll()]) and time.monotonic() < deadline:
            untold = [process for process in untold if process.poll() and not process.terminate()]
            time.sleep(0.02)
        alive += [process for processes in self._dying.values() for process in processes]
        for process in alive:
            process.signal(signal.SIGKILL)
        while any(process.poll() for process in alive):
            time.sleep(0.01)
        self._bury()
        self._prober.close()

    def _bury(self) -> None:
        """Remove the directories of pods that are gone once nothing writes there any more."""
        for uid, processes in list(self._dying.items()):
            if not any(process.poll() for process in processes):
                del self._dying[uid]
                shutil.rmtree(pod_directory(self._cluster, uid), ignore_errors=True)

    def _sync(self, uid: str, running: _Running, now_s: float) -> list[Action]:
        pod = running.pod
        running.due_s = float("inf")
        if is_deleting(pod):
            return self._end(running, now_s)
        actions = self._kill_unhealthy(uid, running, now_s)
        told, running.blocked = running.blocked, {}
        plan = plan_pod(pod, self._facts(uid, running), now_s)
        for name in plan.start:
            self._start(uid, running, name)
        actions += [
            Note(pod, reason, message, is_warning=True)
            for name, (reason, message) in running.blocked.items()
            if told.get(name) != (reason, message)
        ]
        if plan.start:
            plan = plan_pod(pod, self._facts(uid, running), time.time())
        due = [plan.wake_s, now_s + RETRY_S if running.blocked else None, *running.kill_at.values()]
        running.due_s = min((at for at in due if at is not None), default=float("inf"))
        if plan.status["phase"] in FINISHED:
            self._prober.forget(uid)
            del self._running[uid]
        return actions + status_change(pod, plan.status)

    def _start(self, uid: str, running: _Running, name: str) -> None:
        pod = running.pod
        attempts = running.attempts.get(name, [])
        attempt = attempts[-1].attempt + 1 if attempts else 0
        try:
            prepared = self._prepare(pod, name, attempt)
            process = start_container(self._cluster, pod, prepared, attempt)
        except NotStartable as problem:
            running.blocked[name] = (problem.reason, str(problem))
            return
        except (OSError, *MALFORMED) as problem:
            running.blocked[name] = ("CreateContainerError", f"{type(problem).__name__}: {problem}")
            return
        running.attempts[name] = [*attempts[-1:], process]
        self._prober.watch(uid, prepared.container, _ip(pod), prepared.environment)

    def _prepare(self, pod: Object, name: str, attempt: int) -> Prepared:
        def find(kind: str, wanted: str) -> Object | None:
            return self._state.find(kind, namespace_of(pod), wanted)

        return prepare(self._cluster, pod, _container(pod, name), attempt, _ip(pod), find)

    def _facts(self, uid: str, running: _Running) -> Facts:
        attempts = {
            name: [self._seen(running.pod, process) for process in processes]
            for name, processes in running.attempts.items()
        }
        ready = self._prober.verdicts(uid, "readiness")
        return Facts(_ip(running.pod), attempts, ready, dict(running.blocked))

    def _seen(self, pod: Object, process: Process) -> Seen:
        if process.poll():
            return Seen(process.attempt, process.started_s)
        container = _container(pod, process.container)
        message = message_of(container, process, log_path(self._cluster, uid_of(pod), process.container))
        return Seen(process.attempt, process.started_s, process.finished_s, process.exit_code or 0, message)

    def _kill_unhealthy(self, uid: str, running: _Running, now_s: float) -> list[Action]:
        """Containers that failed their liveness probe get SIGTERM, then SIGKILL; restartPolicy does the rest."""
        actions: list[Action] = []
        for name, passes in self._prober.verdicts(uid, "liveness").items():
            process = running.attempts[name][-1]
            if not process.poll():
                running.kill_at.pop(name, None)
                self._prober.forget(uid, name)
            elif name in running.kill_at:
                if now_s >= running.kill_at[name]:
                    process.signal(signal.SIGKILL)
            elif not passes and process.terminate():
                running.kill_at[name] = now_s + running.pod["spec"]["terminationGracePeriodSeconds"]
                message = f"Container {name} failed liveness probe, will be restarted"
                actions.append(Note(running.pod, "Unhealthy", message, is_warning=True))
        return actions

    def _end(self, running: _Running, now_s: float) -> list[Action]:
        """After the preStop pause SIGTERM, once; SIGKILL after the grace period; the object goes when nothing runs."""
        pod = running.pod
        metadata = pod["metadata"]
        since_s = parse_time(metadata["deletionTimestamp"])
        deadline_s = since_s + metadata.get("deletionGracePeriodSeconds", 0)
        alive = [process for process in running.processes() if process.poll()]
        for process in alive:
            if now_s >= deadline_s:
                process.signal(signal.SIGKILL)
            elif now_s < since_s + _pause_s(pod, process.container):
                continue
            elif process.container not in running.kill_at and process.terminate():
                running.kill_at[process.container] = deadline_s
        if alive:
            is_told = all(process.container in running.kill_at for process in alive)
            running.due_s = deadline_s if is_told and now_s < deadline_s else now_s + SOON_S
            return []
        return [Delete(pod, grace_s=0)]

    def _resume_probes(self, uid: str) -> None:
        """Go on probing what an earlier runner started, from the readiness that it told."""
        running = self._running[uid]
        statuses = (running.pod.get("status") or {}).get("containerStatuses") or ()
        ready = {status["name"]: status["ready"] for status in statuses}
        for process in running.processes():
            if process.poll():
                name = process.container
                with contextlib.suppress(NotStartable):
                    prepared = self._prepare(running.pod, name, process.attempt)
                    told_ready, ip = ready.get(name, False), _ip(running.pod)
                    self._prober.watch(uid, prepared.container, ip, prepared.environment, is_ready=told_ready)


def _ip(pod: Object) -> str:
    return "127.0.0.1" if pod["spec"].get("hostNetwork") else pod_ip(uid_of(pod))


def _container(pod: Object, name: str) -> Object:
    spec = pod["spec"]
    every: list[Object] = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return next(container for container in every if container["name"] == name)


def _pause_s(pod: Object, container: str) -> float:
    """How long a container goes on serving after its deletion (lifecycle.preStop.sleep), until routers know of it."""
    lifecycles = {spec["name"]: spec.get("lifecycle") or {} for spec in pod["spec"]["containers"]}
    hook = lifecycles.get(container, {}).get("preStop") or {}
    return float((hook.get("sleep") or {}).get("seconds", 0))
