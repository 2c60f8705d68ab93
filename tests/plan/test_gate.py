from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.plan.gate import GateState, evaluate_gate, needed_nodes
from tasks.plan.types import GateMode, GatePolicy, Node, OnDeadline

Nodes = Callable[..., Node]
ALL, COUNT, PERCENTAGE = GateMode.ALL, GateMode.COUNT, GateMode.PERCENTAGE
OPEN, WAITING, HELD, FAILED = GateState.OPEN, GateState.WAITING, GateState.HELD, GateState.FAILED


@pytest.mark.parametrize(
    ("mode", "value", "warm", "state"),
    [
        (ALL, 100, 3, WAITING),
        (ALL, 100, 4, OPEN),
        (ALL, 1, 3, WAITING),
        (COUNT, 2, 1, WAITING),
        (COUNT, 2, 2, OPEN),
        (COUNT, 9, 3, WAITING),
        (COUNT, 9, 4, OPEN),
        (PERCENTAGE, 50, 1, WAITING),
        (PERCENTAGE, 50, 2, OPEN),
        (PERCENTAGE, 51, 2, WAITING),
        (PERCENTAGE, 51, 3, OPEN),
        (PERCENTAGE, 1, 0, WAITING),
        (PERCENTAGE, 1, 1, OPEN),
    ],
)
def test_the_gate_opens_when_enough_nodes_are_warm(
    node: Nodes, mode: GateMode, value: int, warm: int, state: GateState
) -> None:
    fleet = [node(f"n{index}") for index in range(4)]
    verdict = evaluate_gate(GatePolicy(mode, value), fleet, {f"n{index}" for index in range(warm)}, {}, 0)
    assert (verdict.state, verdict.ready, verdict.counted) == (state, warm, 4)
    assert f"{warm} of 4 schedulable nodes warm" in verdict.reason


@pytest.mark.parametrize("away", [{"ready": False}, {"schedulable": False}, {"deleting": True}])
def test_a_node_that_is_away_does_not_block_the_others(node: Nodes, away: dict[str, bool]) -> None:
    fleet = [node("a"), node("b"), node("c", **away)]
    assert evaluate_gate(GatePolicy(), fleet, {"a"}, {}, 0).state is WAITING
    assert evaluate_gate(GatePolicy(), fleet, {"a", "b"}, {}, 0).state is OPEN
    assert evaluate_gate(GatePolicy(), fleet, {"a", "c"}, {}, 0).ready == 1


@pytest.mark.parametrize("mode", GateMode)
def test_a_gate_does_not_open_because_everybody_is_away(node: Nodes, mode: GateMode) -> None:
    fleet = [node("a", schedulable=False), node("b", ready=False)]
    assert evaluate_gate(GatePolicy(mode, 1), fleet, {"a", "b"}, {}, 0).state is WAITING


def test_a_count_is_not_lowered_by_nodes_that_are_away_for_a_while(node: Nodes) -> None:
    fleet = [node("a"), node("b", ready=False), node("c", schedulable=False)]
    assert evaluate_gate(GatePolicy(COUNT, 2), fleet, {"a"}, {}, 0).state is WAITING


def test_an_endpoint_without_targets_waits_for_nobody() -> None:
    assert evaluate_gate(GatePolicy(), [], set(), {}, 0).state is OPEN


@pytest.mark.parametrize(
    ("outcome", "state"), [(OnDeadline.OPEN_WITH_FALLBACK, OPEN), (OnDeadline.HOLD, HELD), (OnDeadline.FAIL, FAILED)]
)
def test_at_the_deadline_the_declared_outcome_comes(node: Nodes, outcome: OnDeadline, state: GateState) -> None:
    policy, fleet = GatePolicy(ALL, deadline_s=60, on_deadline=outcome), [node("a"), node("b")]
    assert evaluate_gate(policy, fleet, {"a"}, {}, 59.9).state is WAITING
    verdict = evaluate_gate(policy, fleet, {"a"}, {}, 60)
    assert verdict.state is state
    assert "after the deadline of 60 s" in verdict.reason
    assert verdict.reason.endswith(f"onDeadline is {outcome}")


def test_a_gate_that_cannot_open_any_more_is_decided_at_once_with_the_reason(node: Nodes) -> None:
    policy, fleet = GatePolicy(ALL, on_deadline=OnDeadline.FAIL), [node("a"), node("b")]
    verdict = evaluate_gate(policy, fleet, {"a"}, {"b": "NoSpace: the disk is full"}, 1)
    assert verdict.state is FAILED
    assert "b: NoSpace: the disk is full" in verdict.reason


def test_a_failure_that_leaves_enough_nodes_changes_nothing(node: Nodes) -> None:
    fleet = [node("a"), node("b"), node("c")]
    policy = GatePolicy(COUNT, 2, on_deadline=OnDeadline.FAIL)
    assert evaluate_gate(policy, fleet, {"a"}, {"b": "Network"}, 1).state is WAITING
    assert evaluate_gate(policy, fleet, {"a", "c"}, {"b": "Network"}, 1).state is OPEN


def test_a_node_that_failed_before_and_is_warm_now_is_warm(node: Nodes) -> None:
    assert evaluate_gate(GatePolicy(), [node("a")], {"a"}, {"a": "Network"}, 1).state is OPEN
    policy = GatePolicy(on_deadline=OnDeadline.FAIL)
    assert evaluate_gate(policy, [node("a"), node("b")], {"a"}, {"a": "Network"}, 1).state is WAITING


def test_a_gate_that_opened_stays_open_for_its_revision(node: Nodes) -> None:
    policy = GatePolicy(on_deadline=OnDeadline.FAIL)
    verdict = evaluate_gate(policy, [node("a")], set(), {"a": "gone"}, 1e9, opened=True)
    assert verdict.state is OPEN
    assert "opened before" in verdict.reason


policies = st.builds(
    GatePolicy, st.sampled_from(GateMode), st.integers(1, 100), st.floats(1, 1e4), st.sampled_from(OnDeadline)
)
numbers = st.frozensets(st.integers(0, 5))


@given(policies, numbers, numbers, numbers, st.floats(0, 2e4), st.integers(0, 6))
def test_more_warm_nodes_never_close_a_gate_and_no_wait_outlives_its_deadline(
    node: Nodes,
    policy: GatePolicy,
    warm: frozenset[int],
    more: frozenset[int],
    failed: frozenset[int],
    elapsed_s: float,
    size: int,
) -> None:
    fleet = [node(f"n{index}") for index in range(size)]
    # A node that gets warm has not failed; one that had was a reason to stop waiting, and no longer is.
    told = {f"n{index}": "Network" for index in failed - more}
    before = evaluate_gate(policy, fleet, {f"n{index}" for index in warm}, told, elapsed_s)
    after = evaluate_gate(policy, fleet, {f"n{index}" for index in warm | more}, told, elapsed_s)
    if before.state is OPEN:
        assert after.state is OPEN
    if elapsed_s >= policy.deadline_s:
        assert before.state is not WAITING
    if before.state in (HELD, FAILED):
        assert before.ready < before.needed
    assert 0 <= before.needed <= max(before.counted, 0)
    assert after.needed == before.needed


@given(policies, st.integers(0, 50), st.integers(0, 50))
def test_a_gate_never_asks_for_more_nodes_than_there_are(policy: GatePolicy, counted: int, away: int) -> None:
    needed = needed_nodes(policy, counted, counted + away)
    assert 0 <= needed <= counted + away
    assert policy.mode is COUNT or needed <= counted
