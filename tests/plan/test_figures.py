from __future__ import annotations

import pytest

from tasks.plan.figures import bytes_text, count_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (1_020_000_000, "1.02 GB"), (999_900_000, "1 GB"), (3e13, "30 TB")],
)
def test_a_size_is_told_in_three_digits(size_bytes: float, text: str) -> None:
    assert bytes_text(size_bytes) == text


def test_counts_agree_with_their_noun() -> None:
    assert [count_text(count, "node") for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]
