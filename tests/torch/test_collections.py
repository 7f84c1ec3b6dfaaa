# SPDX-License-Identifier: Apache-2.0
"""Collections that Python begins by itself are told as such, and nothing else is."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(sys.version_info >= (3, 14), reason="not known there")

PROGRAM = Path(__file__).with_name("automatic_collections.py")
(LINE,) = [n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "# COLLECTS" in line]


@pytest.fixture
def recorded(build_dir, tmp_path):
    def run(how):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-q", "-o",
             tmp_path / "out", "--wait", "2", "--warmup", "1", "--active", "14", "--export", "0",
             "--", sys.executable, PROGRAM, how],
            env=environment, capture_output=True, text=True, timeout=240)
        assert (result.returncode, result.stdout) == (0, "done 300000 True\n"), result.stderr
        report = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", tmp_path / "out"],
            env=environment, capture_output=True, text=True, check=True)
        (process,) = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
        return process

    return run


def collecting(process):
    return {row["line"]["line"]: row["looks"] for row in process["host_in_gaps"]["rows"]
            if row["kind"] == "garbage_collection"}


def test_collections_by_python_itself(recorded):
    process = recorded("collects")
    looks = collecting(process)
    assert max(looks, key=looks.get) == LINE, looks
    first = process["findings"][0]
    assert first["id"] == "garbage_collection", [f["id"] for f in process["findings"]]
    assert first["where"].startswith(f"automatic_collections.py:{LINE} (make)")
    assert f"of them at automatic_collections.py:{LINE} (make)." in first["evidence"]


@pytest.mark.parametrize("how", ["disabled", "computes"])
def test_nothing_else_is_called_a_collection(recorded, how):
    process = recorded(how)
    assert process["host_in_gaps"]["looks"] >= 10
    assert collecting(process) == {}
    assert "garbage_collection" not in [f["id"] for f in process["findings"]]
