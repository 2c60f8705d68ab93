from __future__ import annotations

from tasks.plan.conditions import Finding, with_findings


def test_the_time_of_a_condition_moves_only_when_its_status_does() -> None:
    first = with_findings([], [Finding("Warmed", None, "Filling", "0 of 2")], at="t1", generation=1)
    second = with_findings(first, [Finding("Warmed", None, "Filling", "1 of 2")], at="t2", generation=2)
    third = with_findings(second, [Finding("Warmed", True, "AllWarm")], at="t3", generation=2)
    assert [(c["status"], c["message"], c["lastTransitionTime"]) for c in (*first, *second, *third)] == [
        ("Unknown", "0 of 2", "t1"),
        ("Unknown", "1 of 2", "t1"),
        ("True", "", "t3"),
    ]
    assert second[0]["observedGeneration"] == 2


def test_other_conditions_stay_and_each_type_is_there_once() -> None:
    old = with_findings(
        [], [Finding("Resolved", True, "Pinned"), Finding("GateOpen", None, "NotYet")], at="t1", generation=1
    )
    new = with_findings(
        old, [Finding("GateOpen", True, "Open"), Finding("Deployed", False, "X")], at="t2", generation=1
    )
    assert [(c["type"], c["status"]) for c in new] == [
        ("Resolved", "True"),
        ("GateOpen", "True"),
        ("Deployed", "False"),
    ]
