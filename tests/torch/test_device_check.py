# SPDX-License-Identifier: Apache-2.0
"""The script for real devices works, here on the simulated one."""

import json
import subprocess
import sys

from recorded import ROOT


def test_checks_pass_on_the_simulated_device(build_dir, clean_environment, tmp_path):
    numbers = tmp_path / "numbers.json"
    result = subprocess.run(
        [sys.executable, ROOT / "tests" / "device" / "check.py", "--build", build_dir, "--simulate",
         "--only", "same", "graph", "--json", numbers],
        env=clean_environment, capture_output=True, text=True, timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all checks passed" in result.stdout
    found = json.loads(numbers.read_text())
    assert found["same"]["pieces"] > 60
    assert abs(found["same"]["kernel_time_ratio"] - 1) < 0.01
