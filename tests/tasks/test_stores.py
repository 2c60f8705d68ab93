from __future__ import annotations

from tasks.jobs import JobEnd
from tasks.stores import check_digest


def test_only_a_report_of_this_revision_is_proof() -> None:
    proven = JobEnd("node-1", ok=True, report={"digest": "a"})
    assert check_digest("a", proven) == proven
    for report in ({"digest": "b"}, {}):
        end = check_digest("a", JobEnd("node-1", ok=True, report=report))
        assert (end.ok, end.reason) == (False, "IntegrityMismatch")
    failed = JobEnd("node-1", ok=False, reason="NoSpace")
    assert check_digest("a", failed) == failed
