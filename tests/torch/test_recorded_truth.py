# SPDX-License-Identifier: Apache-2.0
"""Traces and verdicts with device times by CUDA events, against what the device truly did.

With CUPTI: test_cupti.py.
"""

import collections
import sys

import pytest

from recorded import ROOT, Run, demangled, truth

EXAMPLE = ROOT / "examples" / "train.py"
STARVED = ["--workers", "0", "--slow-transforms"]
CURED = ["--workers", "2", "--fast-transforms", "--pin-memory"]


def same_counts(run):
    """Every launch, copy, memset and byte of the truth is in the trace, once."""
    operations = [o for o in run.log.operations if o.graph == 0]
    kernels = run.events("kernel")
    launches = [e for e in kernels if "graph" not in e["name"].lower()]
    # A thread's first call makes its context current: no event can be recorded before it. Such a
    # launch is in the trace as a call that says so, without a row on the device.
    untimed = [
        e for e in run.events("cuda_runtime", "cuda_driver")
        if "LaunchKernel" in e["name"] and "device time" in e["args"] and "error" not in e["args"]
        and e["args"].get("result", 0) == 0
    ]
    assert len(launches) + len(untimed) == sum(o.kind == "kernel" for o in operations)
    assert len(untimed) <= 2
    assert run.report["coverage"]["device_work_expected"] - run.report["coverage"]["device_work_timed"] == len(untimed)
    expected = collections.Counter()
    for o in operations:
        if o.kind == "memcpy":
            key = (o.copy_kind, o.source, o.destination)
            expected[key, "count"] += 1
            expected[key, "bytes"] += o.bytes
        elif o.kind == "memset":
            expected["memset", "count"] += 1
            expected["memset", "bytes"] += o.bytes
    seen = collections.Counter()
    for e in run.events("gpu_memcpy"):
        direction, kinds = e["name"].removeprefix("Memcpy ").split(" ", 1)
        source, destination = kinds.strip("()").lower().split(" -> ")
        key = (direction, source, destination)
        seen[key, "count"] += 1
        seen[key, "bytes"] += e["args"]["bytes"]
    for e in run.events("gpu_memset"):
        seen["memset", "count"] += 1
        seen["memset", "bytes"] += e["args"]["bytes"]
    assert seen == expected
    by_name = collections.Counter(demangled(o.name) for o in operations if o.kind == "kernel")
    shown = collections.Counter(e["name"] for e in launches)
    assert not shown - by_name
    assert (by_name - shown).total() == len(untimed)
    assert run.report["lost_records"] == 0
    return operations


@pytest.fixture
def record(build_dir, clean_environment, tmp_path):
    return lambda options, command: Run(build_dir, clean_environment, tmp_path,
                                        ["--device-time", "events", *options], command)


def test_stress_counts(record, programs):
    """4 threads, every form of launch, copy and memset, a graph; failing launches are no work."""
    run = record(["--step", "none"], [programs / "stress", "60"])
    assert run.result.returncode == 0, run.result.stderr
    assert run.result.stdout == "bad 0 callbacks 24\n"
    operations = same_counts(run)
    assert sum(o.kind == "kernel" for o in operations) == 4 * 60 * 4
    in_graph = [o for o in run.log.operations if o.graph != 0 and o.kind == "kernel"]
    assert len(in_graph) == 20 * 5
    launches = [e for e in run.events("cuda_runtime") if e["name"].startswith("cudaGraphLaunch")]
    assert len(launches) == 20
    # Rows of calls: each call of the program once, whatever it calls in turn.
    assert run.report["coverage"]["failed_calls"] == 4 * 60
    made = collections.Counter(c.name for c in run.log.calls if c.layer == "runtime")
    shown = collections.Counter(e["name"] for e in run.events("cuda_runtime"))
    for name in ("cudaMemcpyAsync", "cudaMemcpy", "cudaMemset", "cudaMemsetAsync", "cudaMalloc",
                 "cudaHostRegister", "cudaStreamSynchronize", "cudaGraphLaunch"):
        assert shown[name] == made[name] > 0, name
    assert not run.events("cuda_driver"), "a driver call inside a runtime call is the same event"


@pytest.mark.parametrize("way, layer", [("runtime", "cuda_runtime"), ("static", "cuda_driver")])
def test_static_cudart_counts(record, programs, way, layer):
    """I03: the same work through libcudart, and as statically linked cudart does it."""
    run = record(["--step", "none"], [programs / "sim_work", way, "200"])
    assert run.result.returncode == 0, run.result.stderr
    operations = same_counts(run)
    assert sum(o.kind == "kernel" for o in operations) == 200
    assert sum(o.kind == "memcpy" for o in operations) == 40
    assert len([e for e in run.events(layer) if "LaunchKernel" in e["name"]]) == 200


def test_device_times_of_events(record, programs):
    """Kernels that follow each other in a stream have their true length."""
    run = record(["--step", "none"], [programs / "sim_work", "runtime", "300"])
    true = sorted(o.end_ns - o.start_ns for o in run.log.operations if o.kind == "kernel")
    seen = sorted(round(e["dur"] * 1000) for e in run.events("kernel"))
    assert len(seen) == len(true) == 300
    # On an idle stream an event cannot tell the last microsecond; the middle must be right.
    assert abs(seen[150] - true[150]) <= 1500


@pytest.mark.parametrize("name", ["starved", "cured"])
def test_example(record, name):
    """The example: counts exact over the whole run, shares in a window near the truth."""
    options = STARVED if name == "starved" else CURED
    command = [sys.executable, EXAMPLE, *options, "--steps", "40"]
    run = record(["--wait", "5", "--warmup", "2", "--active", "20"], command)
    assert run.result.returncode == 0, run.result.stderr
    begin, end, steps = run.span_ns()
    assert steps == 20
    assert run.report["steps_seen"] == 40
    busy = truth.busy_intervals(run.log.operations, window=(begin, end))
    true_share = truth.total_ns(busy) / (end - begin)
    assert run.report["busy_share"] == pytest.approx(true_share, abs=0.01)

    # Idle at the start of a step: from its edge to the first work that was launched in it.
    starts = sorted(
        (run.monotonic_ns(e["ts"]), run.monotonic_ns(e["ts"] + e["dur"]))
        for e in run.events("user_annotation") if e["name"].startswith("ProfilerStep#")
    )
    calls = {c.correlation: c for c in run.log.calls}
    idle_ns = 0
    for step_begin, step_end in starts:
        own = [o.start_ns for o in run.log.operations
               if step_begin <= calls[o.correlation].start_ns < step_end]
        first = min(own, default=step_end)
        gap = (step_begin, min(first, step_end))
        if gap[1] > gap[0]:
            idle_ns += gap[1] - gap[0] - truth.total_ns(
                truth.busy_intervals(run.log.operations, window=gap)
            )
    true_idle = idle_ns / (end - begin)
    seen_idle = run.report["idle_ms"]["step_start"] * 1e6 / (end - begin)
    assert seen_idle == pytest.approx(true_idle, abs=0.02)
    problems = {f["id"]: f for f in run.report["findings"] if f["problem"]}
    if name == "starved":
        assert true_idle > 0.5
        found = problems["data_starvation"]
        assert run.report["findings"][0]["id"] == "data_starvation"
        # With idle time in the middle of steps, which on a loaded machine is some more.
        assert true_idle - 0.1 <= found["share"] <= 1
        assert found["after"]["file"] == str(EXAMPLE) and found["before"]["file"] == str(EXAMPLE)
        lines = EXAMPLE.read_text().splitlines()
        region = sorted((found["after"]["line"], found["before"]["line"]))
        loop = next(i for i, line in enumerate(lines, 1) if "optimizer.step()" in line)
        assert region[0] - 12 <= loop <= region[1] + 1, (region, loop)
    else:
        assert true_idle < 0.1
        assert "data_starvation" not in problems


@pytest.mark.parametrize("name", ["starved", "cured"])
def test_example_counts(record, name):
    options = STARVED if name == "starved" else CURED
    # Ends with a loss.item(): behind a backward() libtorch may abort at exit.
    run = record(["--step", "none"], [sys.executable, EXAMPLE, *options, "--steps", "10"])
    assert run.result.returncode == 0, run.result.stderr
    same_counts(run)
