from __future__ import annotations

import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from tasks import leases
from tasks.kube import EmbeddedKube, Object
from tasks.leases import Claim, Held, hold, is_dead, process_identity


@pytest.fixture
def owner(kube: EmbeddedKube) -> Object:
    return kube.create(
        {
            "apiVersion": "warmpath.dev/v1alpha1",
            "kind": "InferenceEndpointConfig",
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {},
        }
    )


def claim(owner: Object, holder: str) -> Claim:
    return Claim("warmpath-endpoint-chat", "default", holder, owner)


def held_by(kube: EmbeddedKube) -> str | None:
    holder: str | None = kube.get("Lease", "warmpath-endpoint-chat", "default")["spec"].get("holderIdentity")
    return holder


def ignore(_: str) -> None: ...


def test_a_lease_is_held_during_the_block_and_free_after_it(kube: EmbeddedKube, owner: Object) -> None:
    with hold(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore, lost=ignore):
        assert held_by(kube) == "elsewhere/1"
    assert held_by(kube) is None
    with hold(kube, claim(owner, "elsewhere/2"), wait_s=0, say=ignore, lost=ignore):
        assert held_by(kube) == "elsewhere/2"


def test_a_second_run_is_told_who_holds_it(kube: EmbeddedKube, owner: Object) -> None:
    said: list[str] = []
    with (
        hold(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore, lost=ignore),
        pytest.raises(Held, match="held by elsewhere/1"),
        hold(kube, claim(owner, "elsewhere/2"), wait_s=0.1, say=said.append, lost=ignore),
    ):
        pytest.fail("two runs held one endpoint")
    assert said == ["warmpath-endpoint-chat is held by elsewhere/1; waiting for it to end"]


def test_a_dead_holder_of_this_machine_is_replaced_at_once(kube: EmbeddedKube, owner: Object) -> None:
    code = "from tasks.leases import process_identity; print(process_identity())"
    identity = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    leases.acquire(kube, claim(owner, f"{identity}/run-1"), wait_s=0, say=ignore)
    with hold(kube, claim(owner, f"{process_identity()}/run-2"), wait_s=0, say=ignore, lost=ignore):
        assert held_by(kube) == f"{process_identity()}/run-2"


def test_only_a_process_of_this_machine_that_is_gone_counts_as_dead() -> None:
    alive = process_identity()
    assert not is_dead(f"{alive}/run-1")
    assert is_dead(f"{alive}0/run-1"), "the pid belongs to a process that started later"
    assert not is_dead("another-host.12345678.4026531836/1-5/run-1")
    assert not is_dead("")


def test_a_holder_elsewhere_is_replaced_when_its_lease_stands_still(
    kube: EmbeddedKube, owner: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DURATION_S", 0.2)
    monkeypatch.setattr(leases, "POLL_S", 0.05)
    # A clock that runs an hour fast must not make a dead holder immortal.
    fast = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    leases.acquire(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore)
    kube.patch("Lease", "warmpath-endpoint-chat", {"spec": {"renewTime": fast}}, "default")
    with hold(kube, claim(owner, "elsewhere/2"), wait_s=5, say=ignore, lost=ignore):
        assert held_by(kube) == "elsewhere/2"


def test_a_live_holder_keeps_its_lease_by_renewing_it(
    kube: EmbeddedKube, owner: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DURATION_S", 0.6)
    monkeypatch.setattr(leases, "POLL_S", 0.05)
    with (
        hold(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore, lost=ignore),
        pytest.raises(Held),
    ):
        leases.acquire(kube, claim(owner, "elsewhere/2"), wait_s=1.5, say=ignore)


def test_a_run_learns_that_its_lease_was_taken(
    kube: EmbeddedKube, owner: Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DURATION_S", 0.3)
    told, why = threading.Event(), []

    def lost(reason: str) -> None:
        why.append(reason)
        told.set()

    with hold(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore, lost=lost):
        kube.patch("Lease", "warmpath-endpoint-chat", {"spec": {"holderIdentity": "elsewhere/2"}}, "default")
        assert told.wait(5)
    assert why == ["warmpath-endpoint-chat was taken over by elsewhere/2"]
    assert held_by(kube) == "elsewhere/2", "another's lease is not released"


def test_the_lease_goes_with_its_endpoint(kube: EmbeddedKube, owner: Object) -> None:
    with hold(kube, claim(owner, "elsewhere/1"), wait_s=0, say=ignore, lost=ignore):
        kube.delete("InferenceEndpointConfig", "chat", "default")
        assert kube.list("Lease", "default").items == []
