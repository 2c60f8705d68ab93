"""The loop that makes the cluster live: takes in changes, decides, writes, and runs the pods."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from infra.local.cluster.actions import Action, Create, Delete, Note, Patch, SetStatus, Wake
from infra.local.cluster.control import WATCHED, orphans, plan_round
from infra.local.cluster.events import record, remove_old
from infra.local.cluster.kubelet.kubelet import Kubelet
from infra.local.cluster.nodes import machine_boot_id
from infra.local.cluster.objects import Object, name_of, namespace_of, uid_of
from infra.local.cluster.state import State
from infra.local.cluster.store import Store, StoreError
from infra.local.cluster.transitions import told

logger = logging.getLogger(__name__)

TICK_S = 0.04
SWEEP_S = 30.0
STOP_GRACE_S = 5.0
# Decisions follow one another until nothing is left to do; more rounds than this wait for the next tick.
ROUNDS = 12


class Runner:
    """Scheduler, controllers and kubelets of one cluster, in one thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._state = State()
        self._kubelet = Kubelet(store.directory, self._state)
        self._boot_id = machine_boot_id()
        self._seen = 0
        self._must_decide = True
        self._wake_s = 0.0
        self._sweep_s = 0.0
        self._list_all()
        self._kubelet.remove_leftovers()

    def tick(self) -> None:
        """Take in what happened since the last tick and act until nothing is left to do."""
        for _ in range(ROUNDS):
            self._take_changes()
            now_s = time.time()
            actions = self._kubelet.step(now_s)
            if self._must_decide or now_s >= self._wake_s:
                self._must_decide = False
                decided = plan_round(self._state, self._boot_id, now_s)
                self._wake_s = min((a.at_s for a in decided if isinstance(a, Wake)), default=float("inf"))
                actions += decided
            if not self._perform(actions):
                break
        if time.time() >= self._sweep_s:
            self._sweep()

    def stop(self) -> None:
        self._kubelet.stop(STOP_GRACE_S)

    def _take_changes(self) -> None:
        try:
            changes, self._seen = self._store.changes(self._seen)
        except StoreError:
            logger.warning("The log of changes was cut before it was read; listing everything again")
            self._list_all()
            return
        for change in changes:
            if change.type == "DELETED":
                self._dropped(change.object)
            else:
                self._changed(change.object)

    def _list_all(self) -> None:
        listing = self._store.list("")
        self._seen = int(listing.resource_version)
        there = {uid_of(obj) for obj in listing.items}
        for kind in WATCHED | {"ConfigMap", "Secret"}:
            for obj in self._state.all(kind):
                if uid_of(obj) not in there:
                    self._dropped(obj)
        for obj in listing.items:
            self._changed(obj)

    def _changed(self, obj: Object) -> None:
        kind = obj["kind"]
        if kind not in WATCHED and kind not in ("ConfigMap", "Secret"):
            return
        known = self._state.find(kind, namespace_of(obj), name_of(obj))
        if known is not None and uid_of(known) != uid_of(obj):
            self._dropped(known)
        if not self._state.put(obj):
            return
        if kind == "Pod":
            self._kubelet.pod_changed(obj)
        if kind in WATCHED:
            self._must_decide = True
        else:
            self._kubelet.config_changed()

    def _dropped(self, obj: Object) -> None:
        known = self._state.find(obj["kind"], namespace_of(obj), name_of(obj))
        if known is not None and uid_of(known) == uid_of(obj):
            self._state.drop(known)
        if obj["kind"] == "Pod":
            self._kubelet.pod_gone(uid_of(obj))
        if obj["kind"] in WATCHED:
            self._must_decide = True

    def _perform(self, actions: Iterable[Action]) -> bool:
        """Write what was decided; True when anything was."""
        has_written = False
        for action in actions:
            if isinstance(action, Wake):
                continue
            try:
                self._write(action)
                has_written = True
            except StoreError as error:
                # The object changed or went since the decision: the next round sees what is there now.
                logger.info("%s was overtaken: %s", type(action).__name__, error)
        return has_written

    def _write(self, action: Action) -> None:
        match action:
            case Create(body):
                self._changed(self._store.create(body))
            case Delete(target, grace_s):
                self._store.delete(
                    target["kind"], name_of(target), namespace_of(target), uid=uid_of(target), grace_s=grace_s
                )
            case Patch(target, body):
                self._patch(target, body, "")
            case SetStatus(target, status):
                gone = {key: None for key in (target.get("status") or {}) if key not in status}
                self._patch(target, {"status": {**status, **gone}}, "status")
            case Note():
                logger.info("%s: %s: %s", told(action.about), action.reason, action.message)
                record(self._store, action)

    def _patch(self, target: Object, body: Object, subresource: str) -> None:
        known = self._store.get(target["kind"], name_of(target), namespace_of(target))
        if uid_of(known) != uid_of(target):
            raise StoreError("Conflict", f"{told(target)} was replaced")
        written = self._store.patch(
            target["kind"], name_of(target), body, namespace_of(target), subresource=subresource
        )
        self._changed(written)

    def _sweep(self) -> None:
        self._sweep_s = time.time() + SWEEP_S
        remove_old(self._store, time.time())
        for obj in orphans(self._store.list("").items):
            self._perform([Delete(obj)])
