"""The demo itself, with a small model: the main job, for real, in every run of the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.local
def test_the_demo_shows_what_it_promises(tmp_path: Path) -> None:
    environment = {**os.environ, "WARMPATH_HOME": str(tmp_path / "home"), "COLUMNS": "120"}
    command = [sys.executable, "-c", "from infra.cli.main import main; main()", "demo", "--size-mb", "60"]
    demo = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    told = json.loads(demo.stdout.splitlines()[-1])
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-2000:]
    assert (told["rollouts"], told["nodes_warm"], told["failed_requests"]) == (2, "3/3", 0)
    assert not (tmp_path / "home").exists()
