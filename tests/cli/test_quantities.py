from __future__ import annotations

from datetime import UTC, datetime

import pytest

from infra.cli.quantities import age, duration, size


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1.04e9, "1.0 GB"),
        (145e9, "145.0 GB"),
        (7e12, "7.0 TB"),
    ],
)
def test_sizes_are_in_decimal_units(size_bytes: float | None, shown: str) -> None:
    assert size(size_bytes) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-3, "0s"), (42, "42s"), (190, "3m10s"), (18_120, "5h02m"), (273_600, "3d04h")]
)
def test_durations_show_their_two_largest_units(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_an_age_is_counted_from_a_kubernetes_timestamp() -> None:
    assert age("2026-01-01T00:00:00.250000Z", datetime(2026, 1, 1, 0, 1, tzinfo=UTC)) == "59s"
    assert age("") == ""
