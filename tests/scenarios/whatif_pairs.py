#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `gpubusy whatif` predicts of each example with its mistake, against the cured one that really ran.

    python3 tests/scenarios/whatif_pairs.py [--build DIR] [--keep DIR] [--write]

Each pair is two runs: the step is predicted from the first, and measured in the second. --write puts the
table into docs/whatif.md.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from expected import BY_NAME
from harness import ROOT, Run, marked_lines


def line_of(example):
    return f"{example}.py:{marked_lines(example)[-1]}"


def host(example):
    return (f"host:{line_of(example)}*0",)


# The change that the cure is. Examples whose cure none stands for are not here: another way to share the
# interpreter, streams side by side, a model that is no longer on the CPU, other ranks.
CHANGES = {
    "data_in_main_process": ("workers=4", "pinned"),
    "data_too_few_workers": ("workers=1:6",),
    "data_slow_storage": host("data_slow_storage"),
    "data_many_small_files": host("data_many_small_files"),
    "data_heavy_cpu_transforms": host("data_heavy_cpu_transforms"),
    "data_workers_restarted": host("data_workers_restarted"),
    "copies_from_pageable_memory": ("pinned",),
    "copies_non_blocking_but_pageable": ("pinned",),
    "copies_not_overlapped": ("prefetch",),
    "copies_many_small": ("packed-copies", "kernel:*CatArray*:*0"),
    "sync_item_in_every_layer": (f"no-sync:{line_of('sync_item_in_every_layer')}",),
    "sync_hidden": ("no-sync:Careful.forward",),
    "sync_explicit": (f"no-sync:{line_of('sync_explicit')}",),
    "launch_many_small_kernels": ("drop:average",),
    "device_copies": ("kernel:*direct_copy*:*0", "copies:dtod*0"),
    "memory_cache_emptied": ("alloc*0",),
    "memory_pinned_each_step": ("alloc*0", "no-sync"),
    "checkpoint_blocking": ("drop:save",),
    "logging_every_step": (f"drop:{line_of('logging_every_step')}",),
    "evaluation_too_often": ("drop:evaluate",),
    "garbage_collection": host("garbage_collection"),
}


class Pair:
    def __init__(self, build, folder, example, environment=None):
        self.example, self.changes = example, CHANGES[example]
        scenario = BY_NAME[example]
        before = Run(build, folder / example, scenario, False, environment)
        after = Run(build, folder / f"{example}-cured", scenario, True, environment)
        command = [build / "bin" / "gpubusy", "whatif", "--json", "--together", folder / example / "out"]
        for change in self.changes:
            command += ["--change", change]
        answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        process = next(p for p in answer["processes"] if p["pid"] == before.process["pid"])
        prediction, = process["predictions"]
        self.touched = prediction["touched"]
        self.before = process["step_ms"]
        self.predicted, self.low, self.high = (
            prediction[key] for key in ("step_ms", "low_ms", "high_ms"))
        # As the prediction counts it: from step to step, without the first.
        same = json.loads(subprocess.run(
            [build / "bin" / "gpubusy", "whatif", "--json", "--change", "kernel*1",
             folder / f"{example}-cured" / "out"], check=True, capture_output=True).stdout)
        self.cured = next(
            p for p in same["processes"] if p["pid"] == after.process["pid"])["step_ms"]

    @property
    def error(self):
        return self.predicted / self.cured - 1

    def row(self):
        return (f"| {self.example} | `{'` `'.join(self.changes)}` | {self.before:.1f} | "
                f"{self.predicted:.1f} ({self.low:.1f} to {self.high:.1f}) | {self.cured:.1f} | "
                f"{self.error:+.1%} |")


def table(pairs):
    errors = [abs(pair.error) for pair in pairs]
    return "\n".join([
        "| example | change | step, ms | predicted | really | error |", "|---|---|---|---|---|---|",
        *(pair.row() for pair in pairs), "",
        f"Median error {statistics.median(errors):.1%}, largest {max(errors):.1%}, of {len(pairs)} pairs."])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path,
                        default=os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))
    parser.add_argument("--keep", type=Path, metavar="DIR",
                        help="keep the runs here; those that are there are used again")
    parser.add_argument("--write", action="store_true", help="put the table into docs/whatif.md")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pairs = [Pair(args.build, Path(args.keep or folder), name) for name in args.names or CHANGES]
        print(table(pairs))
        for pair in pairs:
            if not all(pair.touched):
                print(f"{pair.example}: a change touches nothing: {pair.touched}")
        if args.write:
            path = ROOT / "docs" / "whatif.md"
            begin, end = "<!-- pairs: begin -->\n", "<!-- pairs: end -->"
            head, _, rest = path.read_text().partition(begin)
            path.write_text(head + begin + table(pairs) + "\n" + end + rest.partition(end)[2])


if __name__ == "__main__":
    main()
