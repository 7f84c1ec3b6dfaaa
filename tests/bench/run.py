#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a hooked launch costs, side by side in one run: ./dev bench.

Every case calls the same loop over the same do-nothing CUDA runtime from the same Python, in rounds
that take turns, so that a noisy machine disturbs all cases alike. Numbers are medians; the extra
cost is against the direct call of the same round.
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
import ctypes, json, sys
if sys.argv[1] == "cuda_mock":
    import cuda_mock
loop = ctypes.CDLL(sys.argv[2]).ns_per_launch
loop.restype = ctypes.c_double
loop.argtypes = [ctypes.c_long, ctypes.c_long]
if sys.argv[1] == "cuda_mock":
    # It patches the libraries that are loaded when it is asked to.
    cuda_mock.internal_install_hook() if hasattr(cuda_mock, "internal_install_hook") else None
loop(3, 1000)
print(json.dumps(loop(int(sys.argv[3]), int(sys.argv[4]))))
"""


def cases(library: Path) -> dict[str, dict[str, str]]:
    preload = {"LD_PRELOAD": str(library)}
    quiet = {**preload, "GPUBUSY_STEP": "kernel:no_such_kernel", "GPUBUSY_PRELUDE_SIZE": "0"}
    return {
        "direct call": {},
        "gpubusy preloaded, no GPUBUSY_ variable": preload,
        "gpubusy outside a window": {**quiet, "GPUBUSY_WAIT": "1000000"},
        "gpubusy in a window, no stacks": {
            **preload,
            "GPUBUSY_STEP": "none",
            "GPUBUSY_PYTHON_STACKS": "0",
            "GPUBUSY_DEVICE_TIME": "off",
            "GPUBUSY_MAX_SIZE": "8G",
        },
        "gpubusy in a window, Python stacks": {
            **preload,
            "GPUBUSY_STEP": "none",
            "GPUBUSY_DEVICE_TIME": "off",
            "GPUBUSY_MAX_SIZE": "8G",
        },
    }


def measure(kind: str, environment: dict[str, str], args, directory: str) -> float:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"}
    clean.update(environment)
    if "GPUBUSY_STEP" in environment:
        clean["GPUBUSY_OUTPUT"] = tempfile.mkdtemp(dir=directory)
    result = subprocess.run(
        [sys.executable, "-c", CHILD, kind, str(args.loop), str(args.blocks), str(args.launches)],
        env=clean, capture_output=True, text=True, timeout=120,
    )
    if result.returncode != 0:
        raise RuntimeError(f"exit {result.returncode}: {result.stderr.strip()[-300:]}")
    return float(json.loads(result.stdout.strip().splitlines()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", type=Path, required=True, help="libgpubusy.so")
    parser.add_argument("--loop", type=Path, required=True, help="libgpubusy_launch_loop.so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--launches", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    todo = [(name, "plain", environment) for name, environment in cases(args.library.resolve()).items()]
    todo.append(("cuda-mock (PyPI)", "cuda_mock", {}))
    times: dict[str, list[float]] = {name: [] for name, _, _ in todo}
    extra: dict[str, list[float]] = {name: [] for name, _, _ in todo}
    skipped: dict[str, str] = {}
    directory = tempfile.mkdtemp(prefix="gpubusy-bench-")
    try:
        for _ in range(args.rounds):
            direct = None
            for name, kind, environment in todo:
                if name in skipped:
                    continue
                try:
                    t = measure(kind, environment, args, directory)
                except (RuntimeError, subprocess.TimeoutExpired) as error:
                    skipped[name] = str(error)
                    continue
                direct = t if direct is None else direct
                times[name].append(t)
                extra[name].append(t - direct)
            for entry in Path(directory).iterdir():
                shutil.rmtree(entry)
    finally:
        shutil.rmtree(directory, ignore_errors=True)

    print(f"{'one cudaLaunchKernel':44} {'ns':>9} {'extra ns':>9} {'x direct':>9}")
    report = {}
    base = statistics.median(times["direct call"])
    for name, _, _ in todo:
        if name in skipped:
            print(f"{name:44} not measured: {skipped[name].splitlines()[-1] if skipped[name] else ''}")
            continue
        ns, more = statistics.median(times[name]), statistics.median(extra[name])
        report[name] = {"ns": ns, "extra_ns": more}
        print(f"{name:44} {ns:9.1f} {more:9.1f} {ns / base:9.1f}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
