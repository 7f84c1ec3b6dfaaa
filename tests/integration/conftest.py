# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the launcher."""

import subprocess

import pytest


@pytest.fixture(scope="session")
def gpubusy(build_dir) -> str:
    path = build_dir / "bin" / "gpubusy"
    assert path.exists(), f"{path} is not built"
    return str(path)


@pytest.fixture(scope="session")
def cuda_program(programs) -> list[str]:
    """A program that makes a CUDA call and exits with 3: `[path, "return"]`."""
    path = programs / "exit_ways"
    if not path.exists():
        pytest.skip("tests/programs is not built (no CUDA headers)")
    return [str(path), "return"]


@pytest.fixture
def run(tmp_path, clean_environment):
    """Runs a command in tmp_path. Keywords: env (added), and those of subprocess.run."""

    def run(command, *, env=None, timeout=60, text=True, cwd=None, **more):
        if "input" not in more:
            more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run(
            [str(word) for word in command],
            env={**clean_environment, **(env or {})},
            cwd=cwd or tmp_path,
            timeout=timeout,
            text=text,
            capture_output=True,
            **more,
        )

    return run
