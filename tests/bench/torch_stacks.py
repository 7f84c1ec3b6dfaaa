#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What stacks cost in a training loop of real PyTorch on the simulated device: ./dev bench.

First one capture at each kernel launch, in ways that take turns every 200 launches: median and 99th
percentile. Then whole steps, in processes that take turns: the time that a tenth of the steps did not
exceed, and the CPU time of all threads, in the best of the rounds, as machines are rarely idle, and what
torch.profiler does behind the last step. The device is simulated: its own work on the CPU
is in every case, and CUPTI's is not that of the real one.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

GPUBUSY = "gpubusy, no device times, both stacks"
PROFILER = "torch.profiler, CPU alone, with_stack"
GPUBUSY_DEVICE = "gpubusy, both stacks"
PROFILER_DEVICE = "torch.profiler, with_stack"

LOOP = """
import json, sys, time
import torch
from torch import nn
kind, steps = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))

model = nn.Sequential(*[Block(64) for _ in range(6)], nn.Linear(64, 8)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
x, y = torch.randn(16, 64, device="cuda"), torch.randint(0, 8, (16,), device="cuda")

def step():
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss

def loop(steps):
    times = []
    cpu = time.process_time_ns()
    for _ in range(steps):
        begin = time.perf_counter_ns()
        loss = step()
        times.append(time.perf_counter_ns() - begin)
    cpu = time.process_time_ns() - cpu
    loss.item()
    # A step that nobody disturbed.
    return {"us": sorted(times)[steps // 10] / 1000, "cpu_us": cpu / steps / 1000}

loop(10)
if kind.startswith("torch.profiler"):
    from torch.profiler import ProfilerActivity, profile
    activities = [ProfilerActivity.CPU]
    if "device" in kind:
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, with_stack="stack" in kind):
        result = loop(steps)
        end = time.perf_counter_ns()
    result["after_us"] = (time.perf_counter_ns() - end) / steps / 1000
else:
    result = loop(steps)
print("RESULT", json.dumps(result), flush=True)
"""


def environment(**more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
    clean.pop("LD_PRELOAD", None)
    return {**clean, **more}


class Bench:
    def __init__(self, args, directory: Path):
        self.args, self.directory = args, directory
        self.script = directory / "loop.py"
        self.script.write_text(LOOP)
        self.bin = args.build.resolve() / "bin"

    def run(self, kind: str, steps: int, tool=(), **more: str) -> str:
        command = [self.bin / "gpubusy-sim", *tool, sys.executable, self.script, kind, str(steps)]
        result = subprocess.run([str(part) for part in command], env=environment(**more),
                                cwd=self.directory, capture_output=True, text=True, timeout=600)
        for line in result.stdout.splitlines():
            if line.startswith("RESULT "):
                return line.removeprefix("RESULT ")
        raise RuntimeError((result.stderr.strip().splitlines() or ["no output"])[-1])

    def captures(self) -> dict:
        out = self.directory / "captures.json"
        library = self.args.build.resolve() / "bench" / "libgpubusy_bench_capture.so"
        self.run("plain", self.args.capture_steps, LD_PRELOAD=str(library),
                 GPUBUSY_BENCH_CAPTURE=str(out))
        result = json.loads(out.read_text())
        n = result["stacks"]
        print(f"one stack at a kernel launch, {result['launches']} launches, on average "
              f"{result['native_frames'] / n:.0f} native and {result['python_frames'] / n:.0f} Python "
              f"frames; {result['differ']} differ from backtrace(), {result['cut']} cut, "
              f"{result['unplaced']} native alone")
        names = {"timer": "timer alone", "both": "gpubusy: both, in one stack",
                 "python": "gpubusy: Python alone", "native": "gpubusy: native alone",
                 "glibc": "glibc backtrace(), native", "libunwind": "libunwind unw_backtrace(), native"}
        print(f"{'':44} {'median':>9} {'p99':>9}   ns")
        for key, name in names.items():
            if key in result:
                print(f"{name:44} {result[key]['median']:9} {result[key]['p99']:9}")
            else:
                print(f"{name:44} not measured: not installed")
        print()
        return result

    def step_cases(self) -> dict:
        def gpubusy(stacks: str, *options):
            return [self.bin / "gpubusy", "-o", self.directory / "out", "--step", "none",
                    "--export", "0", "--python-stacks", stacks, "--native-stacks", stacks, *options,
                    "--"]
        off = ("--device-time", "off")
        return {
            "plain": ("plain", ()),
            "gpubusy, no device times, no stacks": ("plain", gpubusy("0", *off)),
            GPUBUSY: ("plain", gpubusy("1", *off)),
            "torch.profiler, CPU alone": ("torch.profiler", ()),
            PROFILER: ("torch.profiler stack", ()),
            "gpubusy, no stacks": ("plain", gpubusy("0")),
            GPUBUSY_DEVICE: ("plain", gpubusy("1")),
            "torch.profiler": ("torch.profiler device", ()),
            PROFILER_DEVICE: ("torch.profiler device stack", ()),
        }

    def steps(self) -> dict:
        runs: dict[str, list[dict]] = {}
        for _ in range(self.args.rounds):
            for name, (kind, tool) in self.step_cases().items():
                runs.setdefault(name, []).append(json.loads(self.run(kind, self.args.steps, tool)))
                shutil.rmtree(self.directory / "out", ignore_errors=True)
        report = {}
        print(f"{'one training step, us':44} {'time':>9} {'extra':>9} {'CPU time':>9} {'extra':>9}")
        for name, values in runs.items():
            row = {}
            for key in ("us", "cpu_us"):
                row[key] = min(v[key] for v in values)
                row["extra_" + key] = row[key] - min(p[key] for p in runs["plain"])
            if "after_us" in values[0]:
                row["after_us"] = min(v["after_us"] for v in values)
            report[name] = row
            print(f"{name:44} {row['us']:9.0f} {row['extra_us']:9.0f} {row['cpu_us']:9.0f} "
                  f"{row['extra_cpu_us']:9.0f}"
                  + (f"   and {row['after_us']:.0f} behind the loop" if "after_us" in row else ""))
        for ours, theirs in ((GPUBUSY, PROFILER), (GPUBUSY_DEVICE, PROFILER_DEVICE)):
            parts = [100 * report[ours][k] / report[theirs][k] for k in ("extra_us", "extra_cpu_us")]
            print(f"{ours}: {parts[0]:.1f} % of the extra time of {theirs}, {parts[1]:.1f} % of its "
                  "extra CPU time")
        return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="build folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--capture-steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    try:
        import torch  # noqa: F401
    except ImportError:
        print("not measured: torch is not installed")
        return 0
    directory = Path(tempfile.mkdtemp(prefix="gpubusy-bench-"))
    try:
        bench = Bench(args, directory)
        report = {"captures": bench.captures(), "steps": bench.steps()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
