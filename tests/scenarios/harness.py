#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs an example under gpubusy on the simulated device, and works out what the verdict should say.

    python3 tests/scenarios/harness.py [--build DIR] [NAME...]     prints verdicts beside the truth

The truth has two sources: when the mistake's lines ran, which the example writes, and what the
simulated device did, which is in its log. Times: CLOCK_MONOTONIC ns.
"""

import argparse
import bisect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator"))
import truth  # noqa: E402

from expected import BY_NAME, QUEUE, SCENARIOS  # noqa: E402

CALLS = {
    "allocations": ("cudaMalloc", "cudaFree"),
    "pinning": ("cudaHostRegister", "cudaHostUnregister"),
}
SCHEDULE = ["--wait", "3", "--warmup", "1", "--active", "16"]


def clip(intervals, begin, end):
    return [(max(a, begin), min(b, end)) for a, b in intervals if a < end and b > begin]


def without(intervals, holes):
    """What of sorted, disjoint intervals lies in none of the sorted, disjoint holes."""
    out = []
    for begin, end in intervals:
        for hole_begin, hole_end in clip(holes, begin, end):
            if begin < hole_begin:
                out.append((begin, hole_begin))
            begin = hole_end
        if begin < end:
            out.append((begin, end))
    return out


class Run:
    """One run of an example, with its verdict."""

    def __init__(self, build, directory, scenario, cured, environment=None):
        self.scenario, self.directory, self.environment = scenario, Path(directory), environment
        # A directory that holds a run already: it is only judged again.
        if not (self.directory / "done").exists():
            self.record(build, cured)
        self.judge(build)

    def record(self, build, cured):
        scenario = self.scenario
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / "truth"
        log.mkdir()
        settings = []
        for setting in (*scenario.settings, QUEUE):
            if setting == "kernel_table=":
                setting += str(ROOT / "tests" / "scenarios" / "kernel_times.txt")
            settings += ["--set", setting]
        marks = self.directory / "mistakes.json"
        result = subprocess.run(
            [build / "bin" / "gpubusy", "-q", *SCHEDULE, "--export", "0",
             "-o", self.directory / "out", "--",
             build / "bin" / "gpubusy-sim", "--truth", log, *settings,
             sys.executable, ROOT / "examples" / f"{scenario.example}.py", "--truth", marks,
             *(["--cured"] if cured else [])],
            env=self.environment, capture_output=True, text=True, timeout=180,
            stdin=subprocess.DEVNULL)
        if result.returncode != 0:
            raise RuntimeError(f"{scenario.example}: exit code {result.returncode}\n"
                               + result.stdout + result.stderr)
        (self.directory / "done").touch()

    def judge(self, build):
        marks = self.directory / "mistakes.json"
        report = self.directory / "verdict.json"
        subprocess.run([build / "bin" / "gpubusy", "report", "--json", self.directory / "out",
                        "--report", report], check=True, capture_output=True,
                       env=self.environment)
        processes = [p for p in json.loads(report.read_text())["processes"] if p["calls"]]
        # Of several ranks the one that waits.
        self.process = processes[0]
        if self.process["rank"] is not None:
            marks = marks.with_name(f"{marks.name}.{self.process['rank']}")
        self.marks = json.loads(marks.read_text())
        self.log = next(entry for entry in truth.load_directory(self.directory / "truth")
                        if entry.pid == self.process["pid"])

    @property
    def findings(self):
        return self.process["findings"]

    @property
    def problems(self):
        return [f for f in self.findings if f["problem"]]

    def span(self):
        """Begin and end of the judged steps, by the example's own clock."""
        numbers = [step["step"] for step in self.process["steps"]]
        return self.marks["edges"][numbers[0] - 1], self.marks["edges"][numbers[-1]]

    def cost_ns(self):
        """What the mistake truly cost within the judged steps."""
        begin, end = self.span()
        operations = self.log.operations
        busy = truth.busy_intervals(operations)
        kernels = truth.busy_intervals(operations, kinds=("kernel",))
        cost = self.scenario.cost
        mistakes = truth.merge([tuple(m) for m in self.marks["mistakes"]])
        if cost == "idle":
            # Until the device has work again: the mistake's line ends before the next launch.
            starts = [b for b, _ in busy]
            until = [(a, max(b, starts[i] if (i := bisect.bisect_left(starts, b)) < len(starts) else b))
                     for a, b in mistakes]
            lost = without(truth.merge(until), busy)
        elif cost in CALLS:
            calls = [(c.start_ns, c.end_ns) for c in self.log.calls if c.name in CALLS[cost]]
            lost = without(truth.merge(calls), busy)
        elif cost == "no_kernel":
            lost = without(mistakes, kernels)
        elif cost == "copies_alone":
            copies = truth.merge([(o.start_ns, o.end_ns) for o in operations if o.copy_kind == "HtoD"])
            lost = without(copies, kernels)
        elif cost == "both_ways_alone":
            copies = truth.merge([(o.start_ns, o.end_ns) for o in operations
                                  if o.copy_kind in ("HtoD", "DtoH") and o.bytes >= 1 << 20])
            lost = without(copies, kernels)
        elif cost == "device_copies":
            lost = [(o.start_ns, o.end_ns) for o in operations
                    if o.copy_kind == "DtoD" or "direct_copy_kernel" in o.name]
        elif cost == "series":
            streams = {}
            for o in operations:
                if o.kind == "kernel" and begin <= o.start_ns < end:
                    streams.setdefault(o.stream, []).append((o.start_ns, o.end_ns))
            # The two branches take equally long: one of them is what could have run beside.
            lost = min(sorted(streams.values(), key=truth.total_ns)[-2:], key=truth.total_ns)
        else:
            raise ValueError(cost)
        return truth.total_ns(clip(lost, begin, end))

    def divided_ns(self):
        """The busy time of the judged steps by part, each instant the first that runs: as true as it is."""
        begin, end = self.span()
        own = [o for o in self.log.operations if o.device == self.process["device"]]
        kinds = [("compute", [o for o in own if o.kind == "kernel"])]
        kinds += [(part, [o for o in own if o.copy_kind == direction])
                  for part, direction in (("htod", "HtoD"), ("dtoh", "DtoH"), ("dtod", "DtoD"))]
        kinds.append(("memset", [o for o in own if o.kind == "memset"]))
        out, taken = {}, []
        for part, operations in kinds:
            when = truth.merge([(o.start_ns, o.end_ns) for o in operations])
            out[part] = truth.total_ns(clip(without(when, taken), begin, end))
            taken = truth.merge(taken + when)
        return out

    def parts(self):
        """The division of the judged steps: ns by part."""
        return {row["part"]: row["total_ns"] for row in self.process["division"]["parts"]}

    def summary(self):
        """Lines of text: the step, and each finding with its cost and place."""
        process = self.process
        lines = [f"step {process['mean_step_ms']:.1f} ms, busy {process['busy_share']:.1%}"]
        for f in self.findings:
            where = re.sub(r" \(after.*", "", f["where"])
            lines.append(f"    {'' if f['problem'] else '(i) '}{f['id']} {f['total_ms']:.1f} ms "
                         f"{f['share']:.1%} at {where}")
        return "\n".join(lines)

    def least_cost_ns(self):
        """What of the cost a verdict can know: less, if it is known from looks and some are missing."""
        looked = self.process["host_in_gaps"]
        share = looked["seen_ms"] / looked["total_ms"] if looked["total_ms"] else 0
        return self.cost_ns() * (share if self.scenario.by_looks else 1)

    def most_cost_ns(self):
        if not self.scenario.spreads:
            return self.cost_ns()
        begin, end = self.span()
        busy = truth.busy_intervals(self.log.operations, window=(begin, end))
        return end - begin - truth.total_ns(busy)

    def names_mistake(self, finding):
        """Whether the finding's line, or the region that it names, is where the mistake is."""
        file = f"{self.scenario.example}.py"
        after, before = (
            place["line"] if place and place["file"].endswith("/" + file) else None
            for place in (finding["after"], finding["before"]))
        for line in marked_lines(self.scenario.example):
            if line in (after, before):
                return True
            if after is None or before is None:
                continue
            if after < line < before or (before <= after and (line > after or line < before)):
                return True
        return False


def marked_lines(example, mark="MISTAKE"):
    text = (ROOT / "examples" / f"{example}.py").read_text().splitlines()
    return [number for number, line in enumerate(text, 1) if mark in line]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path,
                        default=os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))
    parser.add_argument("--no-cured", action="store_true")
    parser.add_argument("--keep", type=Path, metavar="DIR",
                        help="keep the runs here; those that are there are only judged again")
    parser.add_argument("names", nargs="*", metavar="NAME")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        directory = args.keep or directory
        for scenario in [BY_NAME[n] for n in args.names] or SCENARIOS:
            try:
                run = Run(args.build, Path(directory) / scenario.example, scenario, False)
                true_ms = run.cost_ns() / 1e6
                print(f"{scenario.example}: {run.summary()}")
                first = run.problems[0] if run.problems else None
                verdict = "no problem found"
                if first:
                    verdict = (f"{'right' if first['id'] == scenario.finding else 'WRONG'} cause, "
                               f"{'right' if run.names_mistake(first) else 'WRONG'} line, "
                               f"{first['total_ms'] / true_ms - 1 if true_ms else float('nan'):+.1%}")
                print(f"    => expected {scenario.finding}, truly {true_ms:.1f} ms: {verdict}")
                if not args.no_cured:
                    cured = Run(args.build, Path(directory) / f"{scenario.example}-cured", scenario, True)
                    print(f"  cured: {cured.summary()}")
            except Exception as error:  # a development aid: show it, go on with the next
                print(f"{scenario.example}: {type(error).__name__}: {error}")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
