"""What each part needs to run, and what a wheel holds."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import packages_distributions

import pytest

HEAVY = ("prefect", "kubernetes", "flows", "infra")


@pytest.mark.parametrize("module", ["router.__main__", "tasks.prefetch.__main__", "tasks.prefetch.fill"])
def test_the_router_and_the_node_program_load_neither_prefect_nor_kubernetes(module: str) -> None:
    script = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []


@pytest.mark.parametrize("package", ["flows", "tasks", "router"])
def test_no_other_distribution_brings_a_package_of_our_name(package: str) -> None:
    assert set(packages_distributions().get(package, [])) <= {"warmpath"}
