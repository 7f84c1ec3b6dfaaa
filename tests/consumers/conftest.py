# SPDX-License-Identifier: Apache-2.0
"""Traces of synthetic recordings, made once per test run."""

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def traces(build_dir, tmp_path_factory):
    """traces(scenario) -> paths of its traces (see tests/support/scenario_main.cpp)."""
    tool = build_dir / "bin" / "gpubusy_scenario"
    assert tool.exists(), f"{tool} is not built"
    made: dict[str, list[Path]] = {}

    def make(scenario: str) -> list[Path]:
        if scenario not in made:
            folder = tmp_path_factory.mktemp(scenario)
            run = subprocess.run(
                [tool, scenario, folder], capture_output=True, text=True, timeout=120, check=True
            )
            made[scenario] = [Path(line) for line in run.stdout.splitlines()]
        return made[scenario]

    return make
