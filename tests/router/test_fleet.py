"""Joins, leaves, restarts, reloads and requests in any order: counts never drift, no draining instance is chosen."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.routing import LiveRouting

STRATEGIES = (
    {"strategy": "RANDOM"},
    {"strategy": "LEAST_OUTSTANDING_REQUESTS"},
    {"strategy": "PREFIX_AWARE", "prefixLength": 1024, "concurrencyThreshold": 2},
)


class Fleet(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.live = LiveRouting()
        self.routing: dict[str, Any] = STRATEGIES[0]
        self.draining: dict[str, bool] = {}  # uid of each instance in the routing
        self.under_way: list[tuple[str, Any]] = []  # uid and instance of each request
        self.restarts = 0

    @initialize()
    def begin(self) -> None:
        self.reload()

    def reload(self) -> None:
        instances = [
            {"uid": uid, "name": uid, "host": "127.0.0.1", "port": 9000, "draining": draining}
            for uid, draining in self.draining.items()
        ]
        endpoint = {"name": "m", "routing": self.routing, "instances": instances}
        self.live.replace(json.dumps({"endpoints": [endpoint]}).encode())

    @rule(number=st.integers(0, 5))
    def join(self, number: int) -> None:
        self.draining.setdefault(f"pod-{number}", False)
        self.reload()

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        self.draining.pop(f"pod-{number}", None)
        self.reload()

    @precondition(lambda self: self.draining)
    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        del self.draining[data.draw(st.sampled_from(sorted(self.draining)))]
        self.restarts += 1
        self.draining[f"restarted-{self.restarts}"] = False
        self.reload()

    @precondition(lambda self: self.draining)
    @rule(data=st.data(), draining=st.booleans())
    def drain(self, data: st.DataObject, draining: bool) -> None:
        self.draining[data.draw(st.sampled_from(sorted(self.draining)))] = draining
        self.reload()

    @rule(strategy=st.sampled_from(STRATEGIES))
    def reconfigure(self, strategy: dict[str, Any]) -> None:
        self.routing = strategy
        self.reload()

    @rule(key=st.binary(min_size=8, max_size=8), rand=st.floats(0, 1, exclude_max=True))
    def request(self, key: bytes, rand: float) -> None:
        endpoint = self.live.current.endpoints["m"]
        if not endpoint.eligible:
            return
        instance, _ = endpoint.choose(key, endpoint.eligible, rand)
        assert self.draining[instance.uid] is False
        instance.in_flight += 1
        self.under_way.append((instance.uid, instance))

    @precondition(lambda self: self.under_way)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        _, instance = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        instance.in_flight -= 1

    @invariant()
    def counts_are_the_requests_under_way(self) -> None:
        for instance in self.live.instances.current:
            assert instance.in_flight == sum(uid == instance.uid for uid, _ in self.under_way)

    @invariant()
    def only_uids_in_the_file_are_routed_to(self) -> None:
        assert {instance.uid for instance in self.live.instances.current} == set(self.draining)


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
