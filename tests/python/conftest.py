# SPDX-License-Identifier: Apache-2.0
"""Finds the interpreters to test with: GPUBUSY_TEST_PYTHONS (separated by ':'), else those of pyenv
and of the system."""
import glob
import os
import re
import subprocess

import pytest


def _version(python):
    try:
        out = subprocess.run(
            [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return out.stdout.strip() if out.returncode == 0 else None


def _pythons():
    given = os.environ.get("GPUBUSY_TEST_PYTHONS")
    if given:
        candidates = [p for p in given.split(":") if p]
    else:
        root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
        candidates = sorted(glob.glob(os.path.join(root, "versions", "*", "bin", "python3")))
        candidates += sorted(p for p in glob.glob("/usr/bin/python3*")
                             if re.fullmatch(r"python3(\.\d+)?", os.path.basename(p)))
    found, seen = [], set()
    for python in candidates:
        real = os.path.realpath(python)
        version = None if real in seen else _version(python)
        seen.add(real)
        if version and version.startswith("3.") and int(version[2:]) >= 8:
            found.append((version, python))
    return found


PYTHONS = _pythons()


def pytest_report_header(config):
    return "interpreters tested: " + (", ".join(
        "%s (%s)" % p for p in PYTHONS) or "none found")


def pytest_generate_tests(metafunc):
    if "python" in metafunc.fixturenames:
        metafunc.parametrize("python", [p for _, p in PYTHONS],
                             ids=["%s-%d" % (v, i) for i, (v, _) in enumerate(PYTHONS)])


@pytest.fixture
def probe():
    path = os.environ.get("GPUBUSY_PYTHON_PROBE")
    if not path:
        pytest.skip("GPUBUSY_PYTHON_PROBE is not set (the module that tests/python builds)")
    return path
