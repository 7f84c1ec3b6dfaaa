# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the built programs. GPUBUSY_TEST_BUILD names the build tree."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))


@pytest.fixture(scope="session")
def gpubusy():
    path = BUILD / "bin" / "gpubusy"
    assert path.exists(), f"{path} is not built"
    return str(path)


@pytest.fixture(scope="session")
def library():
    path = BUILD / "lib" / "libgpubusy.so"
    assert path.exists(), f"{path} is not built"
    return str(path)


@pytest.fixture(scope="session")
def cuda_program():
    """A program that makes a CUDA call and exits with 3: `[path, "return"]`."""
    path = BUILD / "programs" / "exit_ways"
    if not path.exists():
        pytest.skip("tests/programs is not built (no CUDA headers)")
    return [str(path), "return"]


@pytest.fixture
def clean_environment():
    """The environment without anything of ours or of another preload."""
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("GPUBUSY_") and k not in ("LD_PRELOAD", "ASAN_OPTIONS")
    }


@pytest.fixture
def run(tmp_path, clean_environment):
    """Runs a command in tmp_path. Keywords: env (added), and those of subprocess.run."""

    def run(command, *, env=None, timeout=60, text=True, cwd=None, **more):
        return subprocess.run(
            [str(word) for word in command],
            env={**clean_environment, **(env or {})},
            cwd=cwd or tmp_path,
            timeout=timeout,
            text=text,
            **({"capture_output": True, "stdin": subprocess.DEVNULL} | more
               if "input" not in more else {"capture_output": True} | more),
        )

    return run
