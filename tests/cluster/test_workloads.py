"""How a cluster with its control plane behaves, seen through the door."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

import pytest

from infra.local.cluster.actions import Note
from infra.local.cluster.events import record, remove_old
from tasks.kube import Kube, NotFound, Object
from tests.cluster.conftest import EmbeddedCluster

NAMESPACE = "default"
SERVE = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if os.path.exists(sys.argv[1]) or self.path == "/" else 503)
        self.end_headers()
        self.wfile.write(os.environ["NAME"].encode())
    def log_message(self, *args): pass
http.server.HTTPServer((os.environ["IP"], 8000), Handler).serve_forever()
"""


def sh(script: str, **more: Any) -> Object:
    return {"name": "main", "command": ["sh", "-c", script], **more}


def server() -> Object:
    """Serves on its pod's address; ready once /ready/yes exists."""
    return {
        "name": "main",
        "command": ["python", "-S", "-c", SERVE, "/ready/yes"],
        "ports": [{"name": "http", "containerPort": 8000}],
        "env": [
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "http"}, "periodSeconds": 0.05},
        "volumeMounts": [{"name": "ready", "mountPath": "/ready"}],
    }


READY_VOLUME = {"name": "ready", "hostPath": {"path": "/ready", "type": "DirectoryOrCreate"}}


def job(name: str, container: Object, policy: str = "Never", **spec: Any) -> Object:
    pod_spec = {"restartPolicy": policy, "containers": [container], **spec.pop("pod", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"template": {"spec": pod_spec}, **spec},
    }


def workload(kind: str, container: Object, name: str = "web", pod: Object | None = None, **spec: Any) -> Object:
    pod_spec = {"containers": [container], "terminationGracePeriodSeconds": 2, "volumes": [READY_VOLUME], **(pod or {})}
    template = {"metadata": {"labels": {"app": name}}, "spec": pod_spec}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template, **spec},
    }


def service(name: str = "web") -> Object:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    metadata = {"name": name, "namespace": NAMESPACE}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": {"app": name}, "ports": ports},
    }


def pods(kube: Kube, labels: str) -> list[Object]:
    return kube.list("Pod", NAMESPACE, labels).items


def conditions(obj: Object) -> dict[str, str]:
    return {c["type"]: c["reason"] for c in obj.get("status", {}).get("conditions", []) if c["status"] == "True"}


def ended(kube: Kube, name: str) -> str:
    found = conditions(kube.get("Job", name, NAMESPACE))
    return found.get("Complete") or found.get("Failed") or ""


def events(kube: Kube, name: str) -> dict[str, Object]:
    return {
        event["reason"]: event for event in kube.list("Event", NAMESPACE, fields=f"involvedObject.name={name}").items
    }


def endpoints(kube: Kube, name: str = "web") -> list[Object]:
    (found,) = kube.list("EndpointSlice", NAMESPACE, f"kubernetes.io/service-name={name}").items
    return list(found["endpoints"])


def make_ready(cluster: EmbeddedCluster, *nodes: str) -> None:
    for node in nodes:
        directory = cluster.store.directory / "nodes" / node / "ready"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "yes").touch()


def test_a_job_runs_on_its_node_and_leaves_its_last_words(cluster: EmbeddedCluster) -> None:
    for name in ("n1", "n2"):
        cluster.add_node(name)
    container = sh(
        'echo working; echo $WHO > /host/proof; echo \'{"outcome": "Ready"}\' > /dev/termination-log',
        env=[{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        volumeMounts=[{"name": "host", "mountPath": "/host"}],
    )
    place = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
    cluster.kube.create(
        job("fill", container, pod={**place, "volumes": [{"name": "host", "hostPath": {"path": "/opt/nvme"}}]})
    )
    assert cluster.until(lambda: ended(cluster.kube, "fill")) == "CompletionsReached"
    (pod,) = pods(cluster.kube, "batch.kubernetes.io/job-name=fill")
    assert pod["spec"]["nodeName"] == "n2"
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == '{"outcome": "Ready"}\n'
    assert cluster.kube.logs(pod["metadata"]["name"], NAMESPACE) == "working"
    assert (cluster.store.directory / "nodes/n2/opt/nvme/proof").read_text() == "n2\n"
    assert {"Scheduled"} <= set(events(cluster.kube, pod["metadata"]["name"]))
    assert "Completed" in events(cluster.kube, "fill")


def test_a_job_tries_again_until_its_limit(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(job("fill", sh("exit 3"), backoffLimit=1))
    assert cluster.until(lambda: ended(cluster.kube, "fill")) == "BackoffLimitExceeded"
    status = cluster.kube.get("Job", "fill", NAMESPACE)["status"]
    assert (status["failed"], status["active"], status["succeeded"]) == (2, 0, 0)
    codes = [
        pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        for pod in pods(cluster.kube, "job-name=fill")
    ]
    assert codes == [3, 3]


def test_a_job_past_its_deadline_ends_its_process(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(job("fill", sh("exec sleep 60"), activeDeadlineSeconds=0.3))
    assert cluster.until(lambda: ended(cluster.kube, "fill")) == "DeadlineExceeded"
    cluster.until(lambda: not pods(cluster.kube, "job-name=fill"))


def test_a_finished_job_goes_with_its_pods_after_its_time_to_live(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(job("fill", sh("true"), ttlSecondsAfterFinished=0.2))
    cluster.until(lambda: ended(cluster.kube, "fill"))
    cluster.until(lambda: not cluster.kube.list("Job").items and not pods(cluster.kube, "job-name=fill"))
    cluster.until(lambda: not list((cluster.store.directory / "pods").iterdir()))


def test_a_deleted_job_takes_its_running_pod_along(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(job("fill", sh("exec sleep 60")))
    cluster.until(lambda: pods(cluster.kube, "job-name=fill")[0]["status"]["phase"] == "Running")
    cluster.kube.delete("Job", "fill", NAMESPACE)
    cluster.until(lambda: not pods(cluster.kube, "job-name=fill"))


def test_a_deployment_serves_through_its_service_and_rolls(cluster: EmbeddedCluster) -> None:
    for name in ("n1", "n2"):
        cluster.add_node(name)
    make_ready(cluster, "n1", "n2")
    cluster.kube.create(service())
    body = workload("Deployment", server(), replicas=2)
    cluster.kube.apply(body)
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 2)
    before = endpoints(cluster.kube)
    assert {endpoint["nodeName"] for endpoint in before} == {"n1", "n2"}
    assert len({endpoint["addresses"][0] for endpoint in before}) == 2
    for endpoint in before:
        with urllib.request.urlopen(f"http://{endpoint['addresses'][0]}:8000/") as answer:
            assert answer.read().decode() == endpoint["targetRef"]["name"]
    body["spec"]["template"]["metadata"]["annotations"] = {"revision": "2"}
    cluster.kube.apply(body)

    def rolled() -> bool:
        assert sum(endpoint["conditions"]["ready"] for endpoint in endpoints(cluster.kube)) >= 2
        deployment = cluster.kube.get("Deployment", "web", NAMESPACE)
        status = deployment["status"]
        counts = [status[f"{of}eplicas"] for of in ("r", "updatedR", "availableR")]
        return status["observedGeneration"] == deployment["metadata"]["generation"] and counts == [2, 2, 2]

    cluster.until(rolled)
    assert not {e["targetRef"]["uid"] for e in before} & {
        e["targetRef"]["uid"] for e in endpoints(cluster.kube) if not e["conditions"]["terminating"]
    }


def test_a_pod_is_an_endpoint_that_is_not_ready_until_its_probe_passes(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(service())
    cluster.kube.create(workload("Deployment", server(), replicas=1))
    (endpoint,) = cluster.until(lambda: endpoints(cluster.kube))
    assert endpoint["conditions"] == {"ready": False, "serving": False, "terminating": False}
    make_ready(cluster, "n1")
    cluster.until(lambda: endpoints(cluster.kube)[0]["conditions"]["ready"])
    (cluster.store.directory / "nodes/n1/ready/yes").unlink()
    cluster.until(lambda: not endpoints(cluster.kube)[0]["conditions"]["ready"])


def test_a_pod_that_leaves_is_shown_as_terminating(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(service())
    stubborn = sh("trap '' TERM; while :; do sleep 0.05; done", ports=[{"name": "http", "containerPort": 1}])
    cluster.kube.create(workload("Deployment", stubborn, replicas=1, pod={"terminationGracePeriodSeconds": 1}))
    cluster.until(lambda: endpoints(cluster.kube)[0]["conditions"]["ready"])
    cluster.kube.delete("Deployment", "web", NAMESPACE)
    leaving = cluster.until(lambda: [e for e in endpoints(cluster.kube) if e["conditions"]["terminating"]])
    assert leaving[0]["conditions"] == {"ready": False, "serving": True, "terminating": True}
    cluster.until(lambda: not pods(cluster.kube, "app=web") and endpoints(cluster.kube) == [])


def test_a_preferred_warm_node_wins_and_a_full_one_does_not_block(cluster: EmbeddedCluster) -> None:
    label = "warmpath.dev/weights-cache-ready.1234"
    for name in ("a", "b"):
        cluster.add_node(name, capacity={"nvidia.com/gpu": "1"})
    cluster.kube.patch("Node", "b", {"metadata": {"labels": {label: "true"}}})
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": ["true"]}]}
    preferred = [{"weight": 100, "preference": term}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    container = sh("exec sleep 60", resources={"limits": {"nvidia.com/gpu": 1}})
    cluster.kube.create(workload("Deployment", container, replicas=3, pod={"affinity": affinity}))
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 2)
    found = pods(cluster.kube, "app=web")
    assert sorted(pod["spec"].get("nodeName", "") for pod in found) == ["", "a", "b"]
    (pending,) = [pod for pod in found if not pod["spec"].get("nodeName")]
    (reason,) = [c for c in pending["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert (reason["reason"], reason["status"]) == ("Unschedulable", "False")
    assert "2 Insufficient nvidia.com/gpu" in reason["message"]
    cluster.add_node("c", capacity={"nvidia.com/gpu": "1"})
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 3)


def test_a_daemonset_follows_the_nodes(cluster: EmbeddedCluster) -> None:
    cluster.add_node("a")
    cluster.add_node("b", taints=[("gpu", "yes", "NoSchedule")])
    cluster.kube.create(workload("DaemonSet", sh("exec sleep 60")))

    def ready() -> int:
        return int(cluster.kube.get("DaemonSet", "web", NAMESPACE)["status"]["numberReady"])

    cluster.until(lambda: ready() == 1)
    cluster.add_node("c")
    cluster.until(lambda: ready() == 2)
    assert sorted(pod["spec"]["nodeName"] for pod in pods(cluster.kube, "app=web")) == ["a", "c"]
    change = {"spec": {"template": {"metadata": {"annotations": {"v": "2"}}}}}
    old = {pod["metadata"]["uid"] for pod in pods(cluster.kube, "app=web")}
    cluster.kube.patch("DaemonSet", "web", change, NAMESPACE)
    cluster.until(lambda: not old & {pod["metadata"]["uid"] for pod in pods(cluster.kube, "app=web")} and ready() == 2)
    cluster.kube.delete("Node", "c")
    cluster.until(lambda: [pod["spec"].get("nodeName") for pod in pods(cluster.kube, "app=web")] == ["a"])


def test_pods_of_a_removed_node_end_and_come_back_elsewhere(cluster: EmbeddedCluster) -> None:
    cluster.add_node("a")
    container = sh("echo $$$$ > /ready/pid; exec sleep 60", volumeMounts=[{"name": "ready", "mountPath": "/ready"}])
    cluster.kube.create(workload("Deployment", container, replicas=1))
    pid_file = cluster.store.directory / "nodes/a/ready/pid"
    pid = int(cluster.until(lambda: pid_file.exists() and pid_file.read_text()))
    cluster.add_node("b")
    cluster.kube.delete("Node", "a")
    cluster.until(lambda: [p["spec"].get("nodeName") for p in pods(cluster.kube, "app=web")] == ["b"])
    cluster.until(lambda: not is_running(pid))


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_no_execute_taint_drives_pods_away(cluster: EmbeddedCluster) -> None:
    cluster.add_node("a")
    cluster.kube.create(workload("Deployment", sh("exec sleep 60"), replicas=1))
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 1)
    cluster.kube.patch("Node", "a", {"spec": {"taints": [{"key": "broken", "effect": "NoExecute"}]}})
    cluster.add_node("b")
    cluster.until(lambda: [p["spec"].get("nodeName") for p in pods(cluster.kube, "app=web")] == ["b"])


def test_nodes_report_ready_with_a_boot_id_and_a_rehearsed_failure_shows(cluster: EmbeddedCluster) -> None:
    cluster.add_node("a", labels={"pool": "gpu"}, nvme_bytes=10**9)
    node = cluster.until(lambda: conditions(cluster.kube.get("Node", "a")) and cluster.kube.get("Node", "a"))
    assert conditions(node) == {"Ready": "KubeletReady"}
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == "a"
    assert node["metadata"]["annotations"]["warmpath.dev/nvme-bytes"] == "1000000000"
    assert node["status"]["nodeInfo"]["bootID"]
    assert (cluster.store.directory / "nodes/a").is_dir()
    annotations = {"warmpath.dev/kubelet-silent": "", "warmpath.dev/boot-id": "other"}
    cluster.kube.patch("Node", "a", {"metadata": {"annotations": annotations}})
    cluster.until(lambda: "Ready" not in conditions(cluster.kube.get("Node", "a")))
    cluster.kube.patch("Node", "a", {"metadata": {"annotations": {"warmpath.dev/kubelet-silent": None}}})
    cluster.until(lambda: "Ready" in conditions(cluster.kube.get("Node", "a")))
    assert cluster.kube.get("Node", "a")["status"]["nodeInfo"]["bootID"] == "other"


def test_a_cluster_at_rest_writes_nothing(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(service())
    cluster.kube.create(workload("Deployment", sh("exec sleep 60"), replicas=2))
    cluster.kube.create(workload("DaemonSet", sh("exec sleep 60"), "agent"))
    cluster.kube.create(job("fill", sh("true")))
    cluster.kube.create(workload("Deployment", sh("true"), "nowhere", {"nodeSelector": {"no": "node"}}))
    cluster.until(lambda: ended(cluster.kube, "fill"))
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 2)
    cluster.until(lambda: cluster.kube.get("DaemonSet", "agent", NAMESPACE)["status"]["numberReady"] == 1)
    cluster.runner.tick()
    before = cluster.store.revision()
    for _ in range(5):
        cluster.runner.tick()
    assert cluster.store.changes(before)[0] == []


def test_adding_a_node_again_changes_nothing(cluster: EmbeddedCluster) -> None:
    cluster.add_node("a")
    before = cluster.kube.get("Node", "a")
    cluster.add_node("a", labels={"pool": "gpu"})
    assert cluster.kube.get("Node", "a") == before


def test_a_container_without_a_command_says_what_it_needs(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    cluster.kube.create(job("bad", {"name": "main", "image": "engine"}))
    (pod,) = cluster.until(lambda: pods(cluster.kube, "job-name=bad"))
    name = pod["metadata"]["name"]
    warned = cluster.until(lambda: events(cluster.kube, name).get("ImageNeedsCommand"))
    assert "runs commands, not images" in warned["message"]
    assert (warned["type"], warned["involvedObject"]["uid"]) == ("Warning", pod["metadata"]["uid"])
    waiting = cluster.until(
        lambda: cluster.kube.get("Pod", name, NAMESPACE)["status"]["containerStatuses"][0]["state"]["waiting"]
    )
    assert waiting["reason"] == "ImageNeedsCommand"


def test_what_is_made_for_an_owner_that_is_gone_is_removed(cluster: EmbeddedCluster) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "1234"}
    metadata = {"name": "late", "namespace": NAMESPACE, "ownerReferences": [owner]}
    cluster.kube.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})

    def is_gone() -> bool:
        try:
            cluster.kube.get("ConfigMap", "late", NAMESPACE)
        except NotFound:
            return True
        return False

    cluster.until(is_gone)


@pytest.mark.parametrize("replicas", [4, 0])
def test_scaling_by_the_subresource(cluster: EmbeddedCluster, replicas: int) -> None:
    cluster.add_node("a")
    cluster.kube.create(workload("Deployment", sh("exec sleep 60"), replicas=2))
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == 2)
    kept = {pod["metadata"]["uid"] for pod in pods(cluster.kube, "app=web")}
    cluster.kube.patch("Deployment", "web", {"spec": {"replicas": replicas}}, NAMESPACE, subresource="scale")
    cluster.until(lambda: cluster.kube.get("Deployment", "web", NAMESPACE)["status"]["availableReplicas"] == replicas)
    cluster.until(lambda: len(pods(cluster.kube, "app=web")) == replicas)
    if replicas:
        assert kept <= {pod["metadata"]["uid"] for pod in pods(cluster.kube, "app=web")}


def test_a_repeated_event_is_counted(cluster: EmbeddedCluster) -> None:
    cluster.add_node("n1")
    about = cluster.kube.get("Node", "n1")
    for message in ("the disk is full", "the disk is full", "the disk is gone"):
        record(cluster.store, Note(about, "Disk", message, is_warning=True))
    found = {event["message"]: event["count"] for event in cluster.kube.list("Event").items}
    assert found == {"the disk is full": 2, "the disk is gone": 1}
    remove_old(cluster.store, time.time() + 3590)
    assert len(cluster.kube.list("Event").items) == 2
    remove_old(cluster.store, time.time() + 3610)
    assert cluster.kube.list("Event").items == []
