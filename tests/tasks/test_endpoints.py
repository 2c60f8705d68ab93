from __future__ import annotations

import pytest

from tasks.endpoints import explain, observe_running, telling_failures
from tasks.failures import RolloutFailed, RolloutHeld
from tasks.kube import EmbeddedKube, Object, Unavailable
from tasks.sources import SourceError
from tasks.stop import Lost, Stopped


@pytest.fixture
def endpoint(kube: EmbeddedKube) -> Object:
    metadata = {"name": "chat", "namespace": "default"}
    body = {"apiVersion": "warmpath.dev/v1alpha1", "kind": "InferenceEndpointConfig", "metadata": metadata, "spec": {}}
    made = kube.create(body)
    status = {"status": {"state": "DeploymentInProgress", "cache": "chat-1"}}
    return kube.patch("InferenceEndpointConfig", "chat", status, "default", subresource="status") or made


def status(kube: EmbeddedKube) -> Object:
    found: Object = kube.get("InferenceEndpointConfig", "chat", "default")["status"]
    return found


@pytest.mark.parametrize(
    ("error", "state", "reason", "word"),
    [
        (RolloutFailed("NoSpace", "Free space."), "DeploymentFailed", "NoSpace", "Free space."),
        (RolloutHeld("GateHeld", "Roll again."), "DeploymentPending", "GateHeld", "Roll again."),
        (
            SourceError("GatedRepo", "It is gated.", "Ask for access."),
            "DeploymentFailed",
            "GatedRepo",
            "Ask for access.",
        ),
        (Unavailable("no answer"), "DeploymentFailed", "ClusterError", "when the cluster answers"),
        (Stopped("the gate failed"), "DeploymentFailed", "Stopped", "Run again"),
        (KeyError("bug"), "DeploymentFailed", "InternalError", "KeyError"),
        (KeyboardInterrupt(), "DeploymentFailed", "Cancelled", "Run again"),
    ],
)
def test_whatever_ends_a_run_is_told_on_its_endpoint(
    kube: EmbeddedKube, endpoint: Object, error: BaseException, state: str, reason: str, word: str
) -> None:
    with pytest.raises(type(error)), telling_failures("chat", "default"):
        raise error
    told = status(kube)
    assert (told["state"], told["reason"], told["cache"]) == (state, reason, "chat-1")
    assert word in told["message"]
    assert [(c["type"], c["status"], c["reason"]) for c in told["conditions"]] == [("RolledOut", "False", reason)]


def test_a_run_that_lost_its_endpoint_tells_nothing(kube: EmbeddedKube, endpoint: Object) -> None:
    before = status(kube)
    with pytest.raises(Lost), telling_failures("chat", "default"):
        raise Lost("another run holds it")
    assert status(kube) == before


def test_an_endpoint_that_went_meanwhile_does_not_hide_why_the_run_ended(kube: EmbeddedKube) -> None:
    with pytest.raises(RolloutFailed, match="NoSpace"), telling_failures("gone", "default"):
        raise RolloutFailed("NoSpace", "Free space.")


def test_failures_survive_the_way_between_processes() -> None:
    import pickle

    held = pickle.loads(pickle.dumps(RolloutHeld("GateHeld", "Roll again.")))  # noqa: S301 - our own bytes
    assert (type(held), explain(held)) == (RolloutHeld, ("GateHeld", "Roll again."))


def test_nothing_runs_before_the_first_rollout(endpoint: Object) -> None:
    running = observe_running.fn("chat", "default")
    assert (running.replicas, running.digest, running.cache, running.source_uri) == (None, "", "", "")
