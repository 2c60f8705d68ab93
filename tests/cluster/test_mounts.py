from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.local.cluster.kubelet.mounts import expand, rewriter

MOUNTS = {
    "/data": "/real/data",
    "/data/deep": "/real/deep",
    "/warmpath/node/": "/real/node",
    "/dev/termination-log": "/m",
}


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("/data", "/real/data"),
        ("/data/", "/real/data/"),
        ("/data/x", "/real/data/x"),
        ("/data/deep/x", "/real/deep/x"),
        ("/data/deeper", "/real/data/deeper"),
        ("/database", "/database"),
        ("/srv/data", "/srv/data"),
        ("relative/data", "relative/data"),
        ("../data", "../data"),
        ("--root=/data/x", "--root=/real/data/x"),
        ("file:///data/x", "file:///real/data/x"),
        ("https://host/data/x", "https://host/data/x"),
        ("s3://data/x", "s3://data/x"),
        ("echo '/data' > /dev/termination-log", "echo '/real/data' > /m"),
        ("cat /data/a /data/b|wc", "cat /real/data/a /real/data/b|wc"),
        ("PATH=/data/bin:/data/deep", "PATH=/real/data/bin:/real/deep"),
        ('{"path": "/data"}', '{"path": "/real/data"}'),
        ("/warmpath/node/trees", "/real/node/trees"),
        ("/warmpath/nodes", "/warmpath/nodes"),
    ],
)
def test_paths_below_a_mount_are_rewritten_and_no_others(text: str, rewritten: str) -> None:
    assert rewriter(MOUNTS)(text) == rewritten


@given(st.text(alphabet="ab/=: .'", max_size=30))
def test_a_text_without_a_mount_path_stays_as_it_is(text: str) -> None:
    assert rewriter({"/mnt": "/real"})(text) == text
    assert rewriter({})(text) == text


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$A ${A} $", "$A ${A} $"), ("$(A)$(A)", "11")],
)
def test_references_to_variables(text: str, expanded: str) -> None:
    assert expand(text, {"A": "1"}) == expanded
