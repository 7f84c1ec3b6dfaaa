# SPDX-License-Identifier: Apache-2.0
"""A real quota of processor time (a control group), on the simulated device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from control_group import Group  # noqa: E402

PROGRAM = Path(__file__).with_name("quota.py")
PERIOD_US = 100_000


def judged(build_dir, environment, directory, quota_us):
    group = Group(quota_us, PERIOD_US)
    if group.folder is None:
        pytest.skip("no control group with a quota can be made here")
    try:
        run = subprocess.run(
            [build_dir / "bin" / "gpubusy", "-q", "--export", "0", "--wait", "2", "--warmup", "1",
             "--active", "16", "-o", directory / "out", "--", build_dir / "bin" / "gpubusy-sim",
             sys.executable, PROGRAM, group.members, "20", "10"],
            env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    finally:
        group.remove()
    assert (run.returncode, run.stdout) == (0, "done 0.0\n"), run.stderr
    report = subprocess.run([build_dir / "bin" / "gpubusy", "report", "--json", directory / "out"],
                            env=environment, capture_output=True, text=True, check=True)
    [process] = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
    return process


def test_a_quota_that_is_used_up_is_counted(build_dir, clean_environment, tmp_path):
    process = judged(build_dir, clean_environment, tmp_path, 10_000)
    quota = process["host_counters"]["quota"]
    assert 0 < quota["throttled_periods"] <= quota["periods"]
    assert quota["throttled_processor_ms"] > 0.3 * process["wall_ms"]
    # Where the helper has a processor's slice of its own it is not stopped, and cannot place the stretch:
    # the launching thread is then seen to wait for a processor.
    shares = {part["part"]: part["share"] for part in process["division"]["parts"]}
    assert shares.get("cpu_quota", 0) + shares.get("no_processor", 0) >= 0.3, shares
    for finding in (f for f in process["findings"] if f["id"] == "cpu_quota"):
        assert f"in {quota['throttled_periods']} of {quota['periods']} periods" in finding["evidence"]
        # Not more than the host stood still, summed over processors or not.
        assert finding["total_ms"] <= process["wall_ms"]


def test_without_a_quota_it_is_not(build_dir, clean_environment, tmp_path):
    process = judged(build_dir, clean_environment, tmp_path, -1 if Path(
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() else "max")
    assert "cpu_quota" not in [f["id"] for f in process["findings"]]
    assert process["host_counters"]["quota"]["throttled_periods"] in (0, None)
