#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a hooked call costs, side by side in one run: ./dev bench.

Every case runs the same loop over the same do-nothing CUDA runtime from the same Python, in rounds
that take turns, so that a noisy machine disturbs all cases alike. Numbers are medians over rounds;
the extra cost is against the direct call of the same round.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import ctypes, sys
kind, loop, call, blocks, calls = sys.argv[1:]
library = ctypes.CDLL(loop)
if kind == "cuda_mock":
    # It patches the tables of the libraries that are loaded when it is asked to.
    import cuda_mock
    cuda_mock.xpu_initialize()
run = getattr(library, "ns_per_" + call)
run.restype, run.argtypes = ctypes.c_double, [ctypes.c_long, ctypes.c_long]
run(3, 1000)
print("RESULT", run(int(blocks), int(calls)), flush=True)
"""

CALLS = ("cudaLaunchKernel", "cudaMalloc")


# cuda-mock hooks cudaMalloc, cudaFree, cudaMemcpy and the device calls, but no launch.
HOOKED_BY_CUDA_MOCK = ("cudaMalloc",)


def cases(library: Path, call: str) -> dict[str, tuple[str, dict[str, str]]]:
    preload = {"LD_PRELOAD": str(library)}
    window = {
        **preload, "GPUBUSY_STEP": "none", "GPUBUSY_DEVICE_TIME": "off", "GPUBUSY_MAX_SIZE": "8G",
    }
    todo = {
        "direct call": ("plain", {}),
        "gpubusy preloaded, no GPUBUSY_ variable": ("plain", preload),
        "gpubusy outside a window": ("plain", {**preload, "GPUBUSY_PRELUDE_SIZE": "0"}),
        "gpubusy in a window, no stacks": ("plain", {**window, "GPUBUSY_PYTHON_STACKS": "0"}),
        "gpubusy in a window, Python stacks": ("plain", window),
        "gpubusy in a window, native stacks": (
            "plain", {**window, "GPUBUSY_PYTHON_STACKS": "0", "GPUBUSY_NATIVE_STACKS": "1"}),
        "gpubusy in a window, both": ("plain", {**window, "GPUBUSY_NATIVE_STACKS": "1"}),
    }
    if call in HOOKED_BY_CUDA_MOCK:
        todo["cuda-mock (PyPI)"] = ("cuda_mock", {})
    return todo


def measure(kind: str, environment: dict[str, str], call: str, args, directory: str) -> float:
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"
    }
    clean.update(environment)
    if len(environment) > 1:
        clean["GPUBUSY_OUTPUT"] = tempfile.mkdtemp(dir=directory)
        clean["GPUBUSY_EXPORT"] = "0"
    result = subprocess.run(
        [sys.executable, "-c", CHILD, kind, str(args.loop), call, str(args.blocks),
         str(args.calls)],
        env=clean, capture_output=True, text=True, timeout=300,
    )
    for line in result.stdout.splitlines():
        if line.startswith("RESULT "):
            return float(line.split()[1])
    reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
    raise RuntimeError(f"exit {result.returncode}: {reason}")


def compare(call: str, args, directory: str) -> dict:
    times: dict[str, list[float]] = {}
    extra: dict[str, list[float]] = {}
    skipped: dict[str, str] = {}
    for _ in range(args.rounds):
        direct = None
        for name, (kind, environment) in cases(args.library.resolve(), call).items():
            if name in skipped:
                continue
            try:
                ns = measure(kind, environment, call, args, directory)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                if name == "direct call" or name.startswith("gpubusy"):
                    raise
                skipped[name] = str(error)
                continue
            direct = ns if direct is None else direct
            times.setdefault(name, []).append(ns)
            extra.setdefault(name, []).append(ns - direct)
        for entry in Path(directory).iterdir():
            shutil.rmtree(entry)

    print(f"{'one ' + call:44} {'ns':>9} {'extra ns':>9} {'x direct':>9}")
    base = statistics.median(times["direct call"])
    report = {}
    for name, values in times.items():
        ns, more = statistics.median(values), statistics.median(extra[name])
        report[name] = {"ns": ns, "extra_ns": more}
        print(f"{name:44} {ns:9.1f} {more:9.1f} {ns / base:9.1f}")
    for name, reason in skipped.items():
        print(f"{name:44} not measured: {reason}")
    if call not in HOOKED_BY_CUDA_MOCK:
        print(f"{'cuda-mock (PyPI)':44} does not hook {call}")
    print()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libgpubusy.so")
    parser.add_argument("--loop", type=Path, required=True, help="libgpubusy_launch_loop.so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="gpubusy-bench-")
    try:
        report = {call: compare(call, args, directory) for call in CALLS}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
