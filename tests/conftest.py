# SPDX-License-Identifier: Apache-2.0
"""Where the tests find what was built."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def build_dir() -> Path:
    build = Path(os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))
    if not (build / "build.ninja").exists():
        pytest.fail(f"{build} holds no build: run ./dev build")
    return build


@pytest.fixture(scope="session")
def library(build_dir) -> Path:
    return build_dir / "lib" / "libgpubusy.so"


@pytest.fixture(scope="session")
def programs(build_dir) -> Path:
    return build_dir / "programs"


@pytest.fixture
def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GPUBUSY_") and name != "LD_PRELOAD"
    }


@pytest.fixture
def run_preloaded(library, clean_environment, tmp_path):
    """Runs a command with the library and no launcher; recordings go to tmp_path/out."""

    def run(command, timeout=60, output=tmp_path / "out", **variables):
        environment = {**clean_environment, "LD_PRELOAD": str(library)}
        if output is not None:
            environment["GPUBUSY_OUTPUT"] = str(output)
            environment["GPUBUSY_EXPORT"] = "0"
        environment.update(variables)
        return subprocess.run(
            [str(part) for part in command], env=environment, capture_output=True, timeout=timeout
        )

    return run


@pytest.fixture
def run_plain(clean_environment):
    def run(command, timeout=60):
        return subprocess.run(
            [str(part) for part in command], env=clean_environment, capture_output=True,
            timeout=timeout,
        )

    return run
