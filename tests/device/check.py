#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpubusy against PyTorch's own profiler on the device that is there, in two minutes.

    python tests/device/check.py --build build/dev            on a GPU, with a PyTorch that sees it
    python tests/device/check.py --build build/dev --simulate  on the simulated device

Checks, and prints the numbers of:
  same       the same training under gpubusy and under torch.profiler: kernels, copies, streams, calls
  in_app     torch.profiler under gpubusy returns what it returns without; gpubusy takes over again
  graph      a captured graph, replayed: nodes by CUPTI; with CUDA events the capture is not broken
  events     busy time by CUDA events against CUPTI's
  cost       what a launch costs: without gpubusy, before a window, in it (host only, events, CUPTI), and
             after it
Exit status 1 where a check fails. --json FILE keeps everything.
"""

import argparse
import collections
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINING = """
import sys, time, torch, torch.nn as nn
model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 64),
                      nn.ReLU(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
data = torch.randn(64, 3, 32, 32).pin_memory()
labels = torch.randint(0, 10, (64,)).cuda()
def step():
    x = data.to("cuda", non_blocking=True)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), labels)
    loss.backward()
    value = loss.item()
    optimizer.step()
    return value
def profiled(name, steps):
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p:
        for _ in range(steps): step()
        torch.cuda.synchronize()
    p.export_chrome_trace(name)
"""
END = "\ntorch.cuda.synchronize(); time.sleep(0.3)\n"
SAME = TRAINING + """
for _ in range(10): step()
if len(sys.argv) > 1: profiled(sys.argv[1], 5)
else:
    for _ in range(5): step()
""" + END
IN_APP = TRAINING + """
for _ in range(10): step()
profiled(sys.argv[1], 5)
for _ in range(10): step()
""" + END
GRAPH = """
import time, torch
x = torch.randn(1 << 16, device="cuda")
y = (x * 2).relu().sum()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * 2).relu().sum()
for _ in range(10): graph.replay()
torch.cuda.synchronize()
print("captured", flush=True)
time.sleep(0.3)
"""
LAUNCHES = """
import ctypes, sys, time, torch
x = torch.ones(64, device="cuda")
optimizer = torch.optim.SGD([torch.ones(1, device="cuda", requires_grad=True)], lr=0.1)
optimizer.param_groups[0]["params"][0].grad = torch.ones(1, device="cuda")
def block(n):
    torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(n): x.add_(1)
    host = time.perf_counter_ns() - start
    torch.cuda.synchronize()
    return host / n
rounds, n = int(sys.argv[1]), int(sys.argv[2])
for i in range(rounds):
    print("BLOCK", i, block(n), flush=True)
    optimizer.step()
"""
KINDS = ("kernel", "gpu_memcpy", "gpu_memset")


class Checker:
    def __init__(self, args):
        self.args = args
        self.bin = Path(args.build).resolve() / "bin"
        self.directory = Path(tempfile.mkdtemp(prefix="gpubusy-device-"))
        self.prefix = [self.bin / "gpubusy-sim"] if args.simulate else []
        if args.simulate:  # so that the time in which the host really copies does not matter
            self.prefix += ["--set", "h2d_gbps=0.05", "--set", "d2h_gbps=0.05"]
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"}
        self.report = {}
        self.failures = []
        self.count = 0

    def check(self, what, ok, detail=""):
        print(f"  {'ok    ' if ok else 'FAILED'} {what}{': ' + str(detail) if detail != '' else ''}",
              flush=True)
        if not ok:
            self.failures.append(what)

    def run(self, script, *arguments, options=None):
        """Runs a script, under gpubusy where options are given. Output, traces, reports."""
        self.count += 1
        path, out = self.directory / f"{self.count}.py", self.directory / f"{self.count}"
        path.write_text(script)
        command = [*self.prefix]
        if options is not None:
            command += [self.bin / "gpubusy", "-o", out, *options, "--"]
        result = subprocess.run([*map(str, command), sys.executable, str(path), *map(str, arguments)],
                                env=self.environment, capture_output=True, text=True, timeout=300,
                                cwd=self.directory)
        if options is None:
            return result, [], None
        traces = [json.loads(gzip.open(p).read()) for p in sorted(out.glob("*.pt.trace.json.gz"))]
        report = subprocess.run([self.bin / "gpubusy", "report", "--json", out],
                                env=self.environment, capture_output=True, text=True)
        processes = json.loads(report.stdout)["processes"] if report.stdout else []
        return result, traces, processes[0] if processes else None

    @staticmethod
    def rows(trace):
        """(what it is, length) of each piece of device work, and its call's name."""
        calls = {e["args"].get("correlation"): e["name"] for e in trace["traceEvents"]
                 if e.get("cat") in ("cuda_runtime", "cuda_driver") and "args" in e}
        found = []
        for e in sorted((e for e in trace["traceEvents"] if e.get("cat") in KINDS),
                        key=lambda e: e["ts"]):
            args = e["args"]
            size = str((args.get("grid"), args.get("block"))) if e["cat"] == "kernel" else args["bytes"]
            found.append(((e["cat"], e["name"], args["stream"], size), e["dur"],
                          calls.get(args["correlation"], "?").removeprefix("__")))
        return found

    # ---- checks

    def same(self):
        _, traces, report = self.run(SAME, options=["--wait", "10", "--warmup", "0", "--active", "5"])
        alone, _, _ = self.run(SAME, self.directory / "torch.json")
        if not traces or alone.returncode:
            return self.check("both ran", False, alone.stderr[-500:])
        ours = self.rows(traces[0])
        theirs = self.rows(json.loads((self.directory / "torch.json").read_text()))
        a, b = (collections.Counter(r[0] for r in rows) for rows in (ours, theirs))
        for text, difference in (("only gpubusy", a - b), ("only torch.profiler", b - a)):
            for row, n in difference.items():
                print(f"    {text}: {n} x {row}")
        self.check("the same device work", a == b, f"{len(ours)} pieces, {len(theirs)} theirs")
        self.check("on the same calls", collections.Counter(r[2] for r in ours) ==
                   collections.Counter(r[2] for r in theirs))
        kernels = [sum(r[1] for r in rows if r[0][0] == "kernel") for rows in (ours, theirs)]
        ratio = kernels[0] / kernels[1]
        self.check("the same kernel time", abs(ratio - 1) < 0.1, f"{ratio:.4f} of theirs")
        coverage = report["coverage"]
        self.check("times from CUPTI for all", report["time_source"] == "cupti" and
                   coverage["device_work_timed"] == coverage["device_work_expected"], coverage)
        self.report["same"] = {"pieces": len(ours), "kernel_time_ratio": ratio, "coverage": coverage,
                               "notices": report["notices"], "overhead_ms": report["overhead_ms"],
                               "clock_correction_us": report["clock_correction_us"]}

    def in_app(self):
        alone, _, _ = self.run(IN_APP, self.directory / "alone.json")
        under, traces, report = self.run(IN_APP, self.directory / "under.json",
                                         options=["--wait", "2", "--warmup", "0", "--active", "23"])
        if alone.returncode or under.returncode or not traces:
            return self.check("both ran", False, under.stderr[-500:])
        a, b = (collections.Counter(r[0] for r in self.rows(json.loads(
            (self.directory / f"{name}.json").read_text()))) for name in ("alone", "under"))
        self.check("torch.profiler keeps its data", a == b, f"{a.total()} and {b.total()} rows")
        sources = collections.Counter(e["args"]["time source"] for e in traces[0]["traceEvents"]
                                      if e.get("cat") in KINDS)
        self.check("gpubusy gave way and took over again",
                   sources["cupti"] > 0 and sources["cuda events"] > 0, dict(sources))
        self.report["in_app"] = {"sources": sources, "notices": report["notices"]}

    def graph(self):
        for source in ("cupti", "events"):
            result, traces, _ = self.run(GRAPH, options=["--step", "none", "--device-time", source])
            self.check(f"a capture is not broken ({source})",
                       result.returncode == 0 and "captured" in result.stdout, result.stderr[-300:]
                       if result.returncode else "")
            if source == "cupti" and traces:
                nodes = [e for e in traces[0]["traceEvents"] if e.get("cat") in KINDS and
                         "graph node id" in e["args"]]
                replays = len({e["args"]["correlation"] for e in nodes})
                self.check("each node of each replay", replays == 10 and len(nodes) % 10 == 0,
                           f"{len(nodes)} nodes in {replays} replays")

    def events(self):
        busy = {}
        for source in ("cupti", "events"):
            _, _, report = self.run(SAME, options=["--wait", "5", "--warmup", "2", "--active", "8",
                                                   "--device-time", source])
            busy[source] = report["busy_share"] if report else 0
        self.check("busy by events near CUPTI's", abs(busy["events"] - busy["cupti"]) < 0.1, busy)
        self.report["events"] = busy

    def cost(self):
        n, rounds = self.args.launches, 8
        window = ["--wait", "2", "--warmup", "1", "--active", "2", "--python-stacks", "0",
                  "--prelude-size", "0"]
        cases = {"without gpubusy": None}
        for source in ("off", "events", "cupti"):
            cases[source] = [*window, "--device-time", source]
        times = {name: [[] for _ in range(rounds)] for name in cases}
        for _ in range(self.args.rounds):  # in turns, so that a noisy machine disturbs all alike
            for name, options in cases.items():
                result, _, _ = self.run(LAUNCHES, rounds, n, options=options)
                for line in result.stdout.splitlines():
                    if line.startswith("BLOCK"):
                        _, i, ns = line.split()
                        times[name][int(i)].append(float(ns))
        def median(name, blocks):
            values = [v for i in blocks for v in times[name][i]]
            return statistics.median(values) if values else float("nan")
        base = median("without gpubusy", range(1, rounds))
        print(f"  {'x.add_(1), host':34} {'ns':>8} {'x without':>10}")
        table = {"without gpubusy": base}
        # Block 0 is before the first step; step edges are behind each block.
        for name in ("off", "events", "cupti"):
            table[f"{name}: before the window"] = median(name, (1,))
            table[f"{name}: in the window"] = median(name, (3, 4))
            table[f"{name}: after it"] = median(name, (6, 7))
        for name, ns in table.items():
            print(f"  {name:34} {ns:8.0f} {ns / base:10.2f}")
        self.report["cost"] = table


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--launches", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=["same", "in_app", "graph", "events", "cost"])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    checker = Checker(args)
    for name in args.only:
        print(name, flush=True)
        getattr(checker, name)()
    if args.json:
        args.json.write_text(json.dumps(checker.report, indent=2) + "\n")
    print(f"{len(checker.failures)} checks failed" if checker.failures else "all checks passed")
    return 1 if checker.failures else 0


if __name__ == "__main__":
    sys.exit(main())
