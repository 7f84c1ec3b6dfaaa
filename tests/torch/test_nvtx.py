# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.nvtx and torch.cuda.profiler on the simulated device."""

import gzip
import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

SCRIPT = """
import torch
from torch.cuda import nvtx, profiler

nvtx.range_push("run")
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(),
                            torch.nn.Linear(8 * 30 * 30, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(4, 3, 32, 32, device="cuda")
levels = []
for step in range(12):
    if step in (3, 8):
        profiler.start()
    levels.append(nvtx.range_push(f"step {step}"))
    started = nvtx.range_start("started")
    with nvtx.range("forward {}", step % 2):
        loss = model(data).sum()
    nvtx.mark("loss")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    nvtx.range_end(started)
    levels.append(nvtx.range_pop())
    if step in (5, 9):
        profiler.stop()
print(set(levels), nvtx.range_pop(), nvtx.range_pop() < 0)
"""


@pytest.fixture
def run(build_dir, clean_environment, tmp_path):
    clean_environment.pop("NVTX_INJECTION64_PATH", None)

    def run(*options):
        out = tmp_path / "out"
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-o", out, *options,
             "--", sys.executable, "-c", SCRIPT],
            env=clean_environment, capture_output=True, text=True, timeout=300,
        )
        assert (result.returncode, result.stdout) == (0, "{1} 0 True\n"), result.stderr
        report = json.loads(subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", out], check=True,
            capture_output=True).stdout)
        (process,) = [p for p in report["processes"] if p["calls"]]
        traces = [json.loads(gzip.open(p).read()) for p in sorted(out.glob("*.pt.trace.json.gz"))]
        return process, traces, result.stderr

    return run


def named(trace, name):
    return [e for e in trace["traceEvents"] if e["name"] == name and e["ph"] in "Xi"]


def inside(event, outer):
    return outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]


def all_is_timed(process):
    """CUPTI was switched on and off by the calls behind the ranges."""
    coverage = process["coverage"]
    assert process["time_source"] == "cupti"
    assert coverage["device_work_timed"] == coverage["device_work_expected"] > 0
    assert coverage["unhooked_calls"] == coverage["orphan_times"] == 0


def test_ranges_round_the_launches(run):
    process, (trace,), text = run("--step", "nvtx:step *", "--wait", "2", "--warmup", "1",
                                  "--active", "4")
    assert process["steps_seen"] == 12 and len(process["steps"]) == 4
    assert process["step_source"] == "NVTX range"
    all_is_timed(process)
    for step in range(3, 7):
        (row,) = named(trace, f"step {step}")
        calls = [e for e in trace["traceEvents"]
                 if e.get("cat") in ("cuda_runtime", "cuda_driver") and "aunch" in e["name"]]
        assert sum(inside(c, row) for c in calls) > 5
    assert len(named(trace, "forward 0")) == len(named(trace, "forward 1")) == 2
    assert len(named(trace, "started")) == len(named(trace, "loss")) == 4
    (whole,) = named(trace, "run")
    assert whole["args"]["began before the window (us)"] > 0
    table = {(r["domain"], r["name"]): r for r in process["ranges"]}
    forward = table["", "forward 1"]
    assert forward["count"] == 2 and 0 < forward["gpu_idle_ms"] <= forward["total_ms"]
    # Convolutions go to cuDNN; what it launches is inside.
    domains = {domain for domain, _ in table}
    assert "cuDNN" in domains
    name = next(name for domain, name in table if domain == "cuDNN")
    assert any(inside(c, named(trace, name)[0]) for c in calls)
    assert "Ranges by time" in text


def test_windows_by_the_profiler(run):
    process, traces, _ = run("--capture-range", "cudaProfilerApi")
    assert [t["gpubusy"]["window"]["kind"] for t in traces] == ["captured"] * 2
    steps = [[e["name"] for e in t["traceEvents"] if e["name"].startswith("step ")]
             for t in traces]
    assert steps == [["step 3", "step 4", "step 5"], ["step 8", "step 9"]]
    # Steps by the optimizer are counted all the time.
    assert process["steps_seen"] == 12
    assert [s["step"] for s in process["steps"]] == [3, 4, 5, 8, 9]
    all_is_timed(process)


def test_windows_by_a_range(run):
    process, traces, _ = run("--capture-range", "nvtx:step ?")
    assert len(traces) == 10
    assert all(len(named(t, f"step {i}")) == 1 for i, t in enumerate(traces))
    all_is_timed(process)
