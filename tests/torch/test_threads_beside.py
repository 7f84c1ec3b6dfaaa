# SPDX-License-Identifier: Apache-2.0
"""The thread that holds the GIL is named with its line; one that lets go of it is not blamed."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("threads_beside.py")


@pytest.fixture
def recorded(build_dir, tmp_path):
    def run(beside):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-q", "-o",
             tmp_path / "out", "--wait", "8", "--warmup", "1", "--active", "25", "--",
             sys.executable, PROGRAM, beside],
            env=environment, capture_output=True, text=True, timeout=240)
        assert (result.returncode, result.stdout) == (0, "done 0.0\n"), result.stderr
        report = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", tmp_path / "out"],
            env=environment, capture_output=True, text=True, check=True)
        (process,) = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
        return process

    return run


def test_thread_that_computes_in_python(recorded, tmp_path):
    process = recorded("python")
    (finding,) = [f for f in process["findings"] if f["id"] == "gil_contention"]
    gil = process["host_in_gaps"]["gil"]
    assert gil["known_looks"] >= 0.8 * gil["looks"] > 0, gil
    held = sum(row["looks"] for row in gil["holders"]
               if row["line"] and row["line"]["function"] == "in_python")
    assert held >= 0.8 * gil["known_looks"], gil
    first = finding["where"].split(", ")[0]
    assert first.startswith("threads_beside.py:") and first.endswith("(in_python)"), finding
    assert f"at {first} to another process" in finding["cure"]
    assert f"({first}) in " in finding["evidence"]
    # The trace says it where it shows the wait.
    (trace,) = (tmp_path / "out").glob("*.json*")
    waits = [e for e in load(trace) if "GIL held by thread" in e.get("args", {})]
    assert waits
    (holder,) = {row["thread_id"] for row in gil["holders"]
                 if row["line"] and row["line"]["function"] == "in_python"}
    held = [e for e in waits if e["args"]["GIL held by thread"] == holder]
    assert len(held) >= 0.8 * len(waits)
    assert all(e["name"] == "waits for the GIL" for e in waits)


@pytest.mark.parametrize("beside", ["zlib", "nothing"])
def test_nothing_else_is_blamed(recorded, beside):
    process = recorded(beside)
    assert "gil_contention" not in [f["id"] for f in process["findings"]], process["findings"]


def load(trace):
    data = trace.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return json.loads(data)["traceEvents"]
