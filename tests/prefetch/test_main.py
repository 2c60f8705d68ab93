"""The command line itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.prefetch.__main__ import main

LISTED = "import sys, runpy\nsys.argv = ['x', *sys.argv[1:]]\n" + (
    "try:\n    runpy.run_module('tasks.prefetch', run_name='__main__')\nexcept SystemExit:\n    pass\n"
    "print(sorted({'boto3', 'botocore', 'blake3', 'awscrt', 'ssl', 'prefect', 'kubernetes'} & set(sys.modules)))"
)


def run(code, *arguments):
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout.splitlines()


def test_an_audit_loads_no_library_that_takes_long(tmp_path):
    """It runs on every node of a fleet, again and again."""
    report, loaded = run(LISTED, "audit", "--root", tmp_path / "warmpath")
    assert json.loads(report)["event"] == "report"
    assert loaded == "[]"


def test_a_warm_start_of_an_engine_loads_neither_boto3_nor_prefect(node, hub, tmp_path):
    """The seconds that a warm node saves should not go into imports."""
    node.fill(hub)
    *_, loaded = run(
        LISTED, "link", "--root", node.root, "--manifest", tmp_path / "manifest.json", "--into", tmp_path / "model"
    )
    assert (tmp_path / "model" / "config.json").is_symlink()
    assert loaded == "[]"


def test_a_manifest_that_is_missing_or_no_manifest_is_told(node, tmp_path):
    assert node.run("fill", "--manifest", tmp_path / "absent")[1]["reason"] == "NotFound"
    (tmp_path / "text").write_text("hello")
    status, report = node.run("fill", "--manifest", tmp_path / "text")
    assert (status, report["reason"]) == (2, "UnsupportedFormat")


def test_wrong_arguments_are_refused_with_the_usage(capsys):
    with pytest.raises(SystemExit):
        main(["evict", "--root", "x"])
    assert "--digest" in capsys.readouterr().err


def test_a_reader_that_went_away_does_not_stop_a_fill(node, hub, tmp_path):
    node.fill(hub)
    command = [sys.executable, "-m", "tasks.prefetch", "audit", "--root", str(node.root)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    gone, ours = os.pipe()
    os.close(gone)
    with os.fdopen(ours, "w") as output:
        assert subprocess.run(command, stdout=output, env=environment, check=False).returncode == 0
