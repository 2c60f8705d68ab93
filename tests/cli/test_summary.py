from __future__ import annotations

import json
from dataclasses import replace

import pytest

from infra.cli.demo.summary import Summary

GOOD = Summary(
    rollouts=2,
    nodes_warm="3/3",
    cold_ready_s=4.0,
    warm_ready_s=1.5,
    requests=180,
    failed_requests=0,
    hit_rate_random=0.25,
    hit_rate_prefix=0.65,
    ttft_p50_ms_random=900.0,
    ttft_p50_ms_prefix=28.0,
    update_fetched_ratio=0.24,
    old_cache_deleted=True,
    unverified_files=0,
)


def test_a_good_demo_falls_short_of_nothing() -> None:
    assert GOOD.shortfalls() == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rollouts": 1}, "1 rollouts ended well"),
        ({"nodes_warm": "2/3"}, "only 2/3 nodes are warm"),
        ({"nodes_warm": "0/0"}, "only 0/0 nodes are warm"),
        ({"requests": 0}, "no request was sent"),
        ({"failed_requests": 1}, "1 of 180 requests failed"),
        ({"warm_ready_s": 4.0}, "a pod on a warm node took 4.0 s"),
        ({"warm_ready_s": 0.0}, "no pod was seen to start on a warm node"),
        ({"hit_rate_prefix": 0.25}, "the hit rate went from 25% to 25%"),
        ({"update_fetched_ratio": 0.0}, "the update fetched 0%"),
        ({"update_fetched_ratio": 1.0}, "the update fetched 100%"),
        ({"old_cache_deleted": False}, "the old cache was not deleted"),
        ({"unverified_files": 2}, "2 files were not verified"),
    ],
)
def test_whatever_is_not_as_it_should_be_is_told(change: dict[str, object], told: str) -> None:
    [sentence] = replace(GOOD, **change).shortfalls()  # type: ignore[arg-type]
    assert told in sentence


def test_the_last_line_is_one_json_object_with_rounded_figures() -> None:
    line = replace(GOOD, cold_ready_s=3.14159).to_json()
    assert "\n" not in line
    assert json.loads(line)["cold_ready_s"] == 3.142
