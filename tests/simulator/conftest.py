# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of the simulated device: programs run under gpubusy-sim, with a truth log."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator"))

import truth  # noqa: E402


@pytest.fixture(scope="session")
def gpubusy_sim(build_dir) -> str:
    path = build_dir / "bin" / "gpubusy-sim"
    if not path.exists():
        pytest.skip("gpubusy-sim is not built (no CUDA headers)")
    return str(path)


@pytest.fixture(scope="session")
def sim_work(build_dir, gpubusy_sim) -> str:
    return str(build_dir / "programs" / "sim_work")


class Run:
    def __init__(self, result, truth_dir):
        self.returncode, self.stdout, self.stderr = (
            result.returncode, result.stdout, result.stderr)
        self.truth_dir = truth_dir

    @property
    def logs(self):
        return truth.load_directory(self.truth_dir)

    @property
    def log(self):
        """The log of the one process that used the device."""
        logs = [log for log in self.logs if log.operations]
        assert len(logs) == 1, [log.command for log in self.logs]
        return logs[0]


@pytest.fixture
def simulate(gpubusy_sim, clean_environment, tmp_path):
    """Runs a command on the simulated device: simulate(command, context_ms=1) sets parameters."""
    count = 0

    def simulate(command, *, timeout=120, env=None, options=(), check=True, **parameters):
        nonlocal count
        count += 1
        directory = tmp_path / f"truth{count}"
        parameters = {"context_ms": 1, "module_load_us": 0, **parameters}
        settings = [f"--set={k}={v}" for k, v in parameters.items()]
        settings = [word for s in settings for word in s.split("=", 1)]
        result = subprocess.run(
            [gpubusy_sim, *settings, "--truth", str(directory), *options,
             *(str(word) for word in command)],
            env={**clean_environment, **(env or {})}, capture_output=True, text=True,
            timeout=timeout, cwd=tmp_path, stdin=subprocess.DEVNULL)
        if check:
            assert result.returncode == 0, result.stdout + result.stderr
        return Run(result, directory)

    return simulate


@pytest.fixture
def torch_script(simulate):
    """Runs lines of Python that may use torch and print what the test looks at."""
    pytest.importorskip("torch")
    # An autograd thread that drops its last Python object while the interpreter ends aborts the
    # process (torch 2.13 with Python 3.11, on any device): it is given the time to do so before.
    end = "\ntime.sleep(0.3)\n"

    def run(source, *, prefix="import torch, time\n", **options):
        source = prefix + source + (end if prefix else "")
        return simulate([sys.executable, "-W", "ignore", "-c", source], **options)

    return run
