# SPDX-License-Identifier: Apache-2.0
"""What stacks say of a real training, against what torch.profiler says of the same run."""

import bisect
import collections
import contextlib
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("training.py")
OPTIONS = ["--wait", "5", "--warmup", "2", "--active", "12", "-q"]
WORK = ("cudaLaunch", "__cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset")


class Run:
    def __init__(self, build_dir, environment, folder, *arguments, native=True):
        self.out = folder / "out"
        self.tool, self.environment = build_dir / "bin" / "gpubusy", environment
        self.result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", self.tool, "-o", self.out, *OPTIONS,
             "--native-stacks", str(int(native)), "--", sys.executable, SCRIPT, *arguments],
            env=environment, cwd=folder, capture_output=True, text=True, timeout=300)
        assert self.result.returncode == 0, self.result.stderr
        (self.path,) = self.out.glob("*.pt.trace.json.gz")
        self.trace = json.loads(gzip.open(self.path).read())

    def table(self, by):
        result = subprocess.run([self.tool, "report", self.out, "--by", by, "--top", "0", "--json"],
                                env=self.environment, capture_output=True, text=True, check=True)
        (process,) = json.loads(result.stdout)["processes"]
        return process, {row["name"]: row for row in process["rows"]}


@pytest.fixture(scope="module")
def environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith("GPUBUSY_") and name != "LD_PRELOAD"}


@pytest.fixture(scope="module")
def run(build_dir, environment, tmp_path_factory):
    return Run(build_dir, environment, tmp_path_factory.mktemp("stacks"))


@pytest.fixture(scope="module")
def profiled(build_dir, environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    run = Run(build_dir, environment, folder, folder / "torch.json")
    return run, json.loads((folder / "torch.json").read_text())


def launches_with_operators(trace):
    """(time in ns, thread, name, operators outermost first) of each call that asks for work."""
    rows = collections.defaultdict(list)
    for e in trace["traceEvents"]:
        if e["ph"] == "X" and e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver"):
            start = round(e["ts"] * 1000) + trace["baseTimeNanoseconds"]
            rows[e["tid"]].append((start, -round(e["dur"] * 1000), e["cat"] != "cpu_op", e["name"]))
    found = []
    for tid, events in rows.items():
        events.sort(key=lambda e: e[:3])  # what is equal stays as the file has it: outer first
        open_ops = []
        for start, length, is_call, name in events:
            while open_ops and open_ops[-1][0] <= start:
                open_ops.pop()
            if not is_call:
                open_ops.append((start - length, name))
            elif name.startswith(WORK):
                found.append((start, tid, name, [op for _, op in open_ops]))
    return sorted(found)


def test_operators_are_those_of_torch_profiler(profiled):
    run, trace = profiled
    ours, theirs = launches_with_operators(run.trace), launches_with_operators(trace)
    assert len(ours) > 400
    times = [row[0] for row in theirs]
    taken, differences = set(), []
    for start, tid, name, ops in ours:
        near = bisect.bisect(times, start)
        same = [i for i in range(max(0, near - 20), min(len(theirs), near + 20))
                if theirs[i][1:3] == (tid, name) and i not in taken]
        best = min(same, key=lambda i: abs(times[i] - start), default=None)
        assert best is not None and abs(times[best] - start) < 200_000, (name, start)
        taken.add(best)
        # The engine's own range round a node is not an operator.
        wanted = [op for op in theirs[best][3] if not op.startswith("autograd::engine")]
        if ops != wanted:
            differences.append((ops, wanted))
    assert differences == []


def test_names_of_at_ops_are_told_right():
    """Of each operator that this PyTorch has, not only of those in the training."""
    result = subprocess.run([sys.executable, ROOT / ".ci" / "aten_names.py", "--check"],
                            capture_output=True, text=True)
    right, of_all = map(int, result.stdout.split()[0:3:2])
    # A newer PyTorch may have names that the table does not know yet.
    assert right >= 0.99 * of_all and of_all > 3000, result.stdout


def test_each_row_of_an_operator_has_its_id(run):
    events = run.trace["traceEvents"]
    ops = {e["args"]["External id"]: e for e in events if e.get("cat") == "cpu_op"}
    assert len(ops) == sum(e.get("cat") == "cpu_op" for e in events)
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert kernels and all(e["args"]["External id"] in ops for e in kernels)
    calls = {e["args"]["correlation"]: e for e in events if e.get("cat", "").startswith("cuda_")}
    for kernel in kernels:
        call = calls[kernel["args"]["correlation"]]
        op = ops[kernel["args"]["External id"]]
        # A double holds these times to about 0.001 us.
        assert op["ts"] <= call["ts"]
        assert call["ts"] + call["dur"] <= op["ts"] + op["dur"] + 0.003
        assert call["args"]["External id"] == kernel["args"]["External id"]


def test_the_optimizer_has_torchs_name(run):
    rows = [e for e in run.trace["traceEvents"] if e.get("cat") == "user_annotation"
            and e["name"].startswith("Optimizer.step#")]
    assert {e["name"] for e in rows} == {"Optimizer.step#SGD.step"}
    assert len(rows) == 12


def test_perfetto_keeps_every_row(run, perfetto):
    events = run.trace["traceEvents"]
    slices = sum(e["ph"] in "Xi" for e in events)
    counted, problems = perfetto(
        run.path, "select count(*) from slice",
        "select name, value from stats where value != 0 and severity in ('error', 'data_loss')")
    assert problems == [] and counted == [[slices]]


def test_torch_takes_the_trace(run):
    validator = pytest.importorskip("torch.profiler._trace_validator")
    passed, violations = validator.validate_trace(str(run.path))
    assert passed, [str(v) for v in violations]


def test_hta_finds_kernels_behind_operators(run, tmp_path):
    module = pytest.importorskip("hta.trace_analysis")
    file = shutil.copy(run.path, tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        analysis = module.TraceAnalysis(trace_files={0: file}, trace_dir=str(tmp_path))
        stats = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    assert len(stats) > 0
    trace = analysis.t.get_trace(0)
    names = analysis.t.symbol_table.get_sym_table()
    assert "aten::addmm" in {names[n] for n in trace["name"].unique()}


def test_phases(run):
    process, rows = run.table("phase")
    assert sum(row["wall_ms"] for row in rows.values()) == pytest.approx(process["wall_ms"])
    # Forward: 12 steps; relu, dropout and so on. Two of the steps evaluate as well.
    assert rows["forward"]["launches"] % 12 == 0
    assert rows["backward"]["launches"] % 12 == 0 < rows["backward"]["launches"]
    assert rows["optimizer"]["launches"] % 12 == 0 < rows["optimizer"]["launches"]
    guess = rows["evaluation (a guess)"]
    assert guess["guess"] and guess["launches"] > 0
    assert sum(row["launches"] for row in rows.values()) == process["total"]["launches"]


def test_tables_by_operator_and_line(run):
    process, rows = run.table("operator")
    assert rows["aten::copy_"]["copies"] == 24
    assert rows["aten::addmm"]["launches"] >= 12
    assert "(no operator seen)" not in rows
    process, rows = run.table("line")
    copies = {name: row["copies"] for name, row in rows.items() if row["copies"]}
    assert max(copies, key=copies.get).startswith("training.py:") and "(main)" in max(copies)
    process, rows = run.table("stack")
    assert any("aten" not in f and "at::_ops::addmm::call" in f
               for row in rows.values() for f in row["frames"])


def test_without_native_stacks_operators_are_a_guess(build_dir, environment, tmp_path):
    run = Run(build_dir, environment, tmp_path, native=False)
    assert not any(e.get("cat") == "cpu_op" for e in run.trace["traceEvents"])
    process, rows = run.table("operator")
    # The optimizer's step is seen from Python's frames as well.
    assert all(row["guess"] or not row["known"] or name == "Optimizer.step#SGD.step"
               for name, row in rows.items())
    assert "torch.nn.functional.linear" in rows or any("linear" in name for name in rows)
    _, phases = run.table("phase")
    assert phases["backward"]["launches"] > 0
