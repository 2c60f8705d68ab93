"""The routing follows its file, and survives a bad one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

Rig = Any


def write(file: Path, document: object) -> None:
    """As its writers do: beside it, then one rename."""
    beside = file.with_suffix(".new")
    beside.write_text(document if isinstance(document, str) else json.dumps(document))
    beside.replace(file)


async def test_changed_file_comes_into_force(rig: Rig) -> None:
    write(rig.file, {"endpoints": [{"name": "m"}]})
    await rig.until(lambda: "m" in rig.proxy.live.current.endpoints)
    write(rig.file, {"endpoints": [{"name": "n"}]})
    await rig.until(lambda: list(rig.proxy.live.current.endpoints) == ["n"])
    assert rig.proxy.metrics.reloads["loaded",] == 3


async def test_bad_file_keeps_the_old_routing_and_says_which_field_is_wrong(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    write(rig.file, {"endpoints": [{"name": "m"}]})
    await rig.until(lambda: "m" in rig.proxy.live.current.endpoints)
    before = rig.proxy.live.current
    settings = {"strategy": "PREFIX_AWARE", "prefixLength": 1023, "concurrencyThreshold": 10}
    with caplog.at_level(logging.ERROR, "router.reload"):
        write(rig.file, {"endpoints": [{"name": "m", "routing": settings}]})
        await rig.until(lambda: rig.proxy.metrics.reloads["rejected",] == 1)
        write(rig.file, "{")
        await rig.until(lambda: rig.proxy.metrics.reloads["rejected",] == 2)
    assert "endpoints.0.routing.prefixLength: Input should be greater than or equal to 1024" in caplog.text
    assert rig.proxy.live.current is before


async def test_missing_file_keeps_the_routing_until_it_comes_back(rig: Rig) -> None:
    write(rig.file, {"endpoints": [{"name": "m"}]})
    await rig.until(lambda: "m" in rig.proxy.live.current.endpoints)
    rig.file.unlink()
    rig.server.routing_file.poll()
    assert "m" in rig.proxy.live.current.endpoints
    write(rig.file, {"endpoints": [{"name": "n"}]})
    await rig.until(lambda: "n" in rig.proxy.live.current.endpoints)
