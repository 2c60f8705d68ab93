"""Pods as processes: what they are given, how they end, and what survives the runner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.cluster.objects import condition
from infra.local.cluster.runner import Runner
from infra.local.cluster.store import Store
from tasks.kube import EmbeddedKube, NotFound, Object
from tests.cluster.conftest import EmbeddedCluster

NAMESPACE = "default"
SECRET = "hf_planted_secret"


@pytest.fixture
def node(cluster: EmbeddedCluster) -> Path:
    """A node, by the directory that is its file system."""
    cluster.add_node("n1")
    return cluster.store.directory / "nodes/n1"


def pod(script: str = "", name: str = "p", policy: str = "Never", **more: Any) -> Object:
    container = {"name": "main", "command": ["sh", "-c", script], **more.pop("container", {})}
    spec = {"restartPolicy": policy, "terminationGracePeriodSeconds": 2, "containers": [container], **more}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "annotations": {"warmpath.dev/digest": "sha256:12"}},
        "spec": spec,
    }


def config(kind: str, name: str, data: dict[str, str]) -> Object:
    field = "stringData" if kind == "Secret" else "data"
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, field: data}


def status_of(cluster: EmbeddedCluster, name: str = "p") -> Object:
    return dict(cluster.kube.get("Pod", name, NAMESPACE)["status"])


def main_of(cluster: EmbeddedCluster, name: str = "p") -> Object:
    return dict(status_of(cluster, name)["containerStatuses"][0])


def finish(cluster: EmbeddedCluster, name: str = "p") -> str:
    """The log of a pod that ended well."""
    cluster.until(lambda: status_of(cluster, name)["phase"] in ("Succeeded", "Failed"))
    log = cluster.kube.logs(name, NAMESPACE)
    assert status_of(cluster, name)["phase"] == "Succeeded", log
    return log


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_pod_gets_its_environment_and_little_else(
    cluster: EmbeddedCluster, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the runner's own")
    cluster.kube.create(config("ConfigMap", "settings", {"LEVEL": "debug", "other": "x"}))
    cluster.kube.create(config("Secret", "keys", {"HF_TOKEN": SECRET}))

    def field(path: str) -> Object:
        return {"valueFrom": {"fieldRef": {"fieldPath": path}}}

    env = [
        {"name": "POD_IP", **field("status.podIP")},
        {"name": "WHERE", **field("spec.nodeName")},
        {"name": "DIGEST", **field("metadata.annotations['warmpath.dev/digest']")},
        {"name": "URL", "value": "http://$(POD_IP):80/$(NOT_SET)"},
        {"name": "ONE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "other"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "HF_TOKEN"}}},
        {"name": "NONE", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "absent", "optional": True}}},
    ]
    sources = [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "keys"}, "prefix": "S_"}]
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    container = {"command": ["python", "-c", script], "env": env, "envFrom": sources}
    cluster.kube.create(pod(container=container))
    seen = json.loads(finish(cluster))
    ip = status_of(cluster)["podIP"]
    assert ip.startswith("127.")
    declared = {"POD_IP": ip, "WHERE": "n1", "DIGEST": "sha256:12", "URL": f"http://{ip}:80/$(NOT_SET)", "ONE": "x"}
    assert seen.items() >= {**declared, "TOKEN": SECRET, "LEVEL": "debug", "S_HF_TOKEN": SECRET}.items()
    assert "NONE" not in seen
    assert "AWS_SECRET_ACCESS_KEY" not in seen


def test_secrets_stay_out_of_resources_arguments_and_the_runners_log(
    cluster: EmbeddedCluster, node: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    cluster.kube.create(config("Secret", "keys", {"HF_TOKEN": SECRET}))
    volume = {"name": "keys", "secret": {"secretName": "keys"}}
    script = "cat /keys/HF_TOKEN > /proc/self/fd/3; tr '\\0' ' ' < /proc/$PPID/cmdline; stat -c %a /keys/HF_TOKEN"
    container = {
        "command": ["sh", "-c", f"exec 3>/dev/null; {script}"],
        "envFrom": [{"secretRef": {"name": "keys"}}],
        "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
    }
    cluster.kube.create(pod(container=container, volumes=[volume]))
    log = finish(cluster)
    assert log.endswith("600")
    everything = [obj for obj in cluster.store.list("").items if obj["kind"] != "Secret"]
    assert SECRET not in log + caplog.text + json.dumps(everything)


def test_volumes_are_directories_of_node_and_pod(cluster: EmbeddedCluster, node: Path) -> None:
    cluster.kube.create(config("ConfigMap", "manifest", {"manifest.json": "{}", "more": "1"}))
    volumes = [
        {"name": "host", "hostPath": {"path": "/opt/nvme", "type": "DirectoryOrCreate"}},
        {"name": "scratch", "emptyDir": {}},
        {
            "name": "manifest",
            "configMap": {"name": "manifest", "items": [{"key": "manifest.json", "path": "sub/m.json"}]},
        },
    ]
    mounts = [
        {"name": "host", "mountPath": "/warmpath/node"},
        {"name": "host", "mountPath": "/models", "subPath": "models/llama"},
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "manifest", "mountPath": "/manifest"},
    ]
    write = {"name": "write", "command": ["sh", "-c", "echo from-init > /scratch/note"], "volumeMounts": mounts}
    script = "cat /scratch/note /manifest/sub/m.json; ls /manifest; echo a > /warmpath/node/a; echo b > /models/b"
    cluster.kube.create(pod(script, container={"volumeMounts": mounts}, initContainers=[write], volumes=volumes))
    assert finish(cluster).split() == ["from-init", "{}sub"]
    assert (node / "opt/nvme/a").read_text() == "a\n"
    assert (node / "opt/nvme/models/llama/b").read_text() == "b\n"
    uid = cluster.kube.get("Pod", "p", NAMESPACE)["metadata"]["uid"]
    cluster.kube.delete("Pod", "p", NAMESPACE)
    cluster.until(lambda: not (cluster.store.directory / "pods" / uid).exists())
    assert (node / "opt/nvme/a").exists()


@pytest.mark.parametrize(
    ("volume", "told"),
    [
        ({"hostPath": {"path": "/missing", "type": "Directory"}}, "/missing is not a directory"),
        ({"hostPath": {"path": "/../../etc"}}, "must stay inside"),
        ({"configMap": {"name": "absent"}}, 'configmap "absent" not found'),
        ({"nfs": {"server": "x"}}, "only hostPath"),
    ],
)
def test_a_volume_that_cannot_be_had_keeps_the_pod_waiting_with_the_reason(
    cluster: EmbeddedCluster, node: Path, volume: Object, told: str
) -> None:
    container = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    cluster.kube.create(pod("true", container=container, volumes=[{"name": "v", **volume}]))
    waiting = cluster.until(lambda: main_of(cluster)["state"]["waiting"].get("message"))
    assert told in waiting
    assert status_of(cluster)["phase"] == "Pending"


def test_a_pod_starts_when_the_secret_that_it_waits_for_appears(
    cluster: EmbeddedCluster, node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.local.cluster.kubelet.kubelet.RETRY_S", 600)
    container = {"envFrom": [{"secretRef": {"name": "late"}}]}
    cluster.kube.create(pod("echo $KEY", container=container))
    reason = cluster.until(lambda: main_of(cluster)["state"]["waiting"]["reason"])
    assert reason == "CreateContainerConfigError"
    cluster.kube.create(config("Secret", "late", {"KEY": "there"}))
    assert finish(cluster) == "there"


def test_init_containers_run_in_order_and_again_when_they_fail(cluster: EmbeddedCluster, node: Path) -> None:
    mounts = [{"name": "work", "mountPath": "/steps"}]
    flaky = "echo one >> /steps/log; test -e /steps/tried || { touch /steps/tried; exit 1; }"
    initial = [
        {"name": "one", "command": ["sh", "-c", flaky], "volumeMounts": mounts},
        {"name": "two", "command": ["sh", "-c", "echo two >> /steps/log"], "volumeMounts": mounts},
    ]
    volumes = [{"name": "work", "emptyDir": {}}]
    body = pod(
        "cat /steps/log",
        policy="OnFailure",
        container={"volumeMounts": mounts},
        initContainers=initial,
        volumes=volumes,
    )
    cluster.kube.create(body)
    assert finish(cluster).split() == ["one", "one", "two"]
    first, second = status_of(cluster)["initContainerStatuses"]
    assert (first["restartCount"], second["restartCount"]) == (1, 0)


def test_a_container_that_ends_is_started_again_in_place(cluster: EmbeddedCluster, node: Path) -> None:
    cluster.kube.create(pod("exit 7", policy="Always"))
    again = cluster.until(lambda: main_of(cluster)["restartCount"] >= 1 and main_of(cluster))
    assert again["lastState"]["terminated"]["exitCode"] == 7
    assert status_of(cluster)["phase"] == "Running"


@pytest.mark.parametrize(
    ("script", "policy", "code", "message"),
    [
        ("echo done > /dev/termination-log", "File", 0, "done\n"),
        ("echo noise; echo why; exit 3", "FallbackToLogsOnError", 3, "noise\nwhy\n"),
        ("echo noise; exit 3", "File", 3, None),
        ("kill -9 $$$$", "File", 137, None),
        ("head -c 5000 /dev/zero | tr '\\0' x > /dev/termination-log", "File", 0, "x" * 4096),
    ],
)
def test_how_a_container_ended_is_in_its_status(
    cluster: EmbeddedCluster, node: Path, script: str, policy: str, code: int, message: str | None
) -> None:
    cluster.kube.create(pod(script, container={"terminationMessagePolicy": policy}))
    terminated = cluster.until(lambda: main_of(cluster)["state"]["terminated"])
    assert (terminated["exitCode"], terminated.get("message")) == (code, message)


def test_a_deleted_pod_may_finish_its_work_within_its_grace_period(cluster: EmbeddedCluster, node: Path) -> None:
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    script = "trap 'echo drained > /host/proof; exit 0' TERM; touch /host/up; while :; do sleep 0.05; done"
    cluster.kube.create(pod(script, container=mounts, volumes=volumes))
    cluster.until((node / "up").exists)
    cluster.kube.delete("Pod", "p", NAMESPACE)
    cluster.until(lambda: cluster.kube.list("Pod").items == [])
    assert (node / "proof").read_text() == "drained\n"


def test_a_deleted_pod_goes_on_serving_for_its_pre_stop_pause(cluster: EmbeddedCluster, node: Path) -> None:
    container = {
        "lifecycle": {"preStop": {"sleep": {"seconds": 0.6}}},
        "volumeMounts": [{"name": "host", "mountPath": "/host"}],
    }
    script = "trap 'date +%s.%N > /host/told; exit 0' TERM; touch /host/up; while :; do sleep 0.02; done"
    cluster.kube.create(pod(script, container=container, volumes=[{"name": "host", "hostPath": {"path": "/"}}]))
    cluster.until((node / "up").exists)
    deleted_at = time.time()
    cluster.kube.delete("Pod", "p", NAMESPACE)
    cluster.until(lambda: cluster.kube.list("Pod").items == [])
    assert float((node / "told").read_text()) >= deleted_at + 0.6


def test_a_pod_that_ignores_sigterm_is_killed_with_all_its_children(cluster: EmbeddedCluster, node: Path) -> None:
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    script = "trap '' TERM; sleep 600 & echo $! > /host/child; wait; sleep 600"
    body = pod(script, container=mounts, volumes=volumes, terminationGracePeriodSeconds=0.5)
    cluster.kube.create(body)
    child = int(cluster.until(lambda: (node / "child").exists() and (node / "child").read_text()))
    cluster.kube.delete("Pod", "p", NAMESPACE)
    cluster.until(lambda: cluster.kube.list("Pod").items == [])
    cluster.until(lambda: not is_running(child))


def test_a_failing_liveness_probe_restarts_the_container(cluster: EmbeddedCluster, node: Path) -> None:
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    probe = {"exec": {"command": ["test", "-e", "/host/alive"]}, "periodSeconds": 0.05, "failureThreshold": 2}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    container = {"livenessProbe": probe, **mounts}
    (node / "alive").touch()
    cluster.kube.create(pod("exec sleep 600", policy="Always", container=container, volumes=volumes))
    cluster.until(lambda: main_of(cluster)["state"].get("running"))
    (node / "alive").unlink()
    restarted = cluster.until(lambda: main_of(cluster)["restartCount"] == 1 and main_of(cluster))
    assert restarted["lastState"]["terminated"]["exitCode"] == 143
    assert "Unhealthy" in {event["reason"] for event in cluster.kube.list("Event").items}


@pytest.mark.parametrize("kind", ["exec", "tcpSocket"])
def test_readiness_by_command_and_by_socket(cluster: EmbeddedCluster, node: Path, kind: str) -> None:
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    probe = {"exec": {"command": ["test", "-e", "/host/go"]}} if kind == "exec" else {"tcpSocket": {"port": 9000}}
    listen = "import os, socket, time; s = socket.create_server((os.environ['IP'], 9000)); time.sleep(600)"
    script = f'while ! test -e /host/go; do sleep 0.02; done; exec {sys.executable} -S -c "{listen}"'
    env = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    container = {"readinessProbe": {**probe, "periodSeconds": 0.05}, "env": env, **mounts}
    cluster.kube.create(pod(script, container=container, volumes=volumes))
    cluster.until(lambda: status_of(cluster)["phase"] == "Running")
    assert condition(cluster.kube.get("Pod", "p", NAMESPACE), "Ready")["status"] == "False"
    (node / "go").touch()
    cluster.until(lambda: condition(cluster.kube.get("Pod", "p", NAMESPACE), "Ready")["status"] == "True")


def test_a_pod_that_makes_no_sense_does_not_stop_the_others(cluster: EmbeddedCluster, node: Path) -> None:
    cluster.kube.create(pod("true", "odd", container={"env": [{"value": "no name"}], "ports": 5}))
    cluster.kube.create(pod("echo fine", "sane"))
    assert finish(cluster, "sane") == "fine"
    assert cluster.until(lambda: main_of(cluster, "odd")["state"]["waiting"]["reason"]) == "CreateContainerError"


class Outside:
    """A cluster whose runner is a process of its own, so that it can be killed."""

    def __init__(self, directory: Path) -> None:
        self.store = Store(directory)
        self.kube = EmbeddedKube(self.store)
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "infra.local.cluster", "--dir", str(self.store.directory)]
        with (self.store.directory / "runner.log").open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log)
        return self.process

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def until(self, found: Any) -> Any:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                if result := found():
                    return result
            except (KeyError, IndexError, NotFound):
                pass
            time.sleep(0.02)
        raise AssertionError((self.store.directory / "runner.log").read_text())


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    cluster = EmbeddedCluster(tmp_path)
    cluster.add_node("n1")
    cluster.close()
    outside = Outside(tmp_path)
    yield outside
    outside.process.terminate()
    assert outside.process.wait(20) == 0
    outside.store.close()


@pytest.mark.chaos
def test_a_killed_runner_finds_its_pods_again(outside: Outside) -> None:
    """What runs goes on untouched; what ended meanwhile is told with its exit code and last words."""
    mounts = {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}
    volumes = [{"name": "host", "hostPath": {"path": "/"}}]
    probe = {"exec": {"command": ["test", "-e", "/host/ready"]}, "periodSeconds": 0.05}
    (outside.store.directory / "nodes/n1/ready").touch()
    outside.kube.create(
        pod("exec sleep 600", "lasting", "Always", container={"readinessProbe": probe, **mounts}, volumes=volumes)
    )
    script = "while ! test -e /host/go; do sleep 0.02; done; echo late > /dev/termination-log; exit 5"
    outside.kube.create(pod(script, "ending", container=mounts, volumes=volumes))
    outside.kube.create(pod("exec sleep 600", "doomed"))

    def find(name: str) -> Object:
        return outside.kube.get("Pod", name, NAMESPACE)

    def running(name: str) -> Object:
        state: Object = find(name)["status"]["containerStatuses"][0]["state"]["running"]
        return state

    outside.until(lambda: condition(find("lasting"), "Ready")["status"] == "True")
    outside.until(lambda: running("ending") and running("doomed"))
    before, doomed = find("lasting"), find("doomed")["metadata"]["uid"]
    outside.kill()
    (outside.store.directory / "nodes/n1/go").touch()
    outside.store.delete("Pod", "doomed", NAMESPACE, grace_s=0)
    watched = outside.store.revision()
    outside.start()
    ended = outside.until(lambda: find("ending")["status"]["containerStatuses"][0]["state"]["terminated"])
    assert (ended["exitCode"], ended["message"]) == (5, "late\n")
    outside.until(lambda: not (outside.store.directory / "pods" / doomed).exists())
    assert find("lasting")["status"] == before["status"]
    changed, _ = outside.store.changes(watched, "Pod")
    assert "lasting" not in {change.object["metadata"]["name"] for change in changed}


@pytest.mark.chaos
def test_a_process_killed_together_with_its_runner_starts_again(outside: Outside) -> None:
    outside.kube.create(pod("exec sleep 600", policy="Always"))

    def status() -> Object:
        return dict(outside.kube.get("Pod", "p", NAMESPACE)["status"]["containerStatuses"][0])

    outside.until(lambda: status()["state"]["running"])
    uid = outside.kube.get("Pod", "p", NAMESPACE)["metadata"]["uid"]
    (record,) = (outside.store.directory / "pods" / uid / "run").glob("*.process")
    pid = int(record.read_text().split()[1])
    outside.kill()
    os.killpg(pid, signal.SIGKILL)
    outside.start()
    again = outside.until(lambda: status()["restartCount"] == 1 and status()["state"].get("running") and status())
    assert again["lastState"]["terminated"]["exitCode"] == 137


@pytest.mark.chaos
def test_sigterm_to_the_runner_ends_the_pods_and_keeps_the_objects(outside: Outside) -> None:
    outside.kube.create(pod("echo $$$$; exec sleep 600", policy="Always"))
    pid = int(outside.until(lambda: outside.kube.logs("p", NAMESPACE)))
    outside.process.terminate()
    assert outside.process.wait(20) == 0
    assert not is_running(pid)
    assert outside.kube.get("Pod", "p", NAMESPACE)
    outside.start()
    outside.until(
        lambda: outside.kube.get("Pod", "p", NAMESPACE)["status"]["containerStatuses"][0]["restartCount"] == 1
    )


@pytest.mark.chaos
def test_a_runner_whose_directory_is_removed_ends_with_its_pods(outside: Outside) -> None:
    outside.kube.create(pod("echo $$$$; exec sleep 600", policy="Always"))
    pid = int(outside.until(lambda: outside.kube.logs("p", NAMESPACE)))
    shutil.rmtree(outside.store.directory)
    assert outside.process.wait(20) == 0
    assert not is_running(pid)


def test_a_second_runner_of_the_same_cluster_is_refused(outside: Outside) -> None:
    outside.until(lambda: outside.kube.get("Node", "n1")["status"]["conditions"])
    command = [sys.executable, "-m", "infra.local.cluster", "--dir", str(outside.store.directory)]
    second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert second.returncode == 1
    assert "already runs" in second.stderr


def test_a_runner_that_fell_behind_lists_again(tmp_path: Path) -> None:
    store = Store(tmp_path, log_length=5)
    runner = Runner(store)
    runner.tick()
    metadata = {"name": "p", "namespace": NAMESPACE}
    store.create({**pod("true", "first"), "metadata": {**metadata, "name": "first"}})
    for count in range(200):
        store.apply(config("ConfigMap", "noise", {"count": str(count)}), manager="noise")
    runner.tick()
    status = store.get("Pod", "first")["status"]
    assert condition({"status": status}, "PodScheduled")["reason"] == "Unschedulable"
    runner.stop()
    store.close()
