# SPDX-License-Identifier: Apache-2.0
"""A program under gpubusy on the simulated device: its trace, its report, and the truth."""

import collections
import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator"))
import truth  # noqa: E402

KINDS = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
# Of the conversion between CUPTI's clock and the truth's.
TOLERANCE_NS = 1000


class Run:
    """One run. `settings`: of the simulated device, name=value."""

    def __init__(self, build_dir, environment, directory, options, command, settings=()):
        self.out, log = directory / "out", directory / "truth"
        log.mkdir(parents=True)
        self.result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", "--set", f"truth={log}",
             *(part for setting in settings for part in ("--set", setting)),
             build_dir / "bin" / "gpubusy", "-o", self.out, *options, "--", *map(str, command)],
            env=environment, cwd=directory, capture_output=True, text=True, timeout=300,
        )
        report = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", self.out],
            capture_output=True, text=True, check=True, env=environment,
        )
        recorded = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
        assert len(recorded) == 1, self.result.stderr
        self.report = recorded[0]
        logs = [log for log in truth.load_directory(log) if log.pid == self.report["pid"]]
        assert len(logs) == 1
        self.log = logs[0]
        traces = sorted(self.out.glob("*.pt.trace.json.gz"))
        assert len(traces) == 1, self.result.stderr
        self.trace = json.loads(gzip.open(traces[0]).read())

    def events(self, *categories):
        return [e for e in self.trace["traceEvents"] if e.get("cat") in categories]

    def monotonic_ns(self, ts):
        """A trace's microseconds in the truth's clock."""
        return round(ts * 1000) + self.trace["baseTimeNanoseconds"] - (
            self.log.start_realtime_ns - self.log.start_ns
        )

    def span_ns(self):
        steps = [e for e in self.events("user_annotation") if e["name"].startswith("ProfilerStep#")]
        begin = min(self.monotonic_ns(e["ts"]) for e in steps)
        return begin, max(self.monotonic_ns(e["ts"] + e["dur"]) for e in steps), len(steps)

    @property
    def work(self):
        """Device rows of the trace, by start."""
        return sorted(self.events(*KINDS), key=lambda e: e["ts"])

    def interval(self, event):
        start = self.monotonic_ns(event["ts"])
        return start, start + round(event["dur"] * 1000)

    def notices(self):
        return "\n".join(self.trace["gpubusy"]["notices"])


def demangled(name):
    if not name.startswith("_Z"):
        return name
    if name not in demangled.cache:
        demangled.cache[name] = subprocess.run(
            ["c++filt", name], capture_output=True, text=True, check=True
        ).stdout.strip()
    return demangled.cache[name]


demangled.cache = {}


def description(operation):
    """What a trace's row says of an operation of the truth, but for its times."""
    if operation.kind == "kernel":
        return ("kernel", demangled(operation.name), operation.device, operation.stream,
                tuple(operation.grid), tuple(operation.block))
    return (operation.kind, operation.copy_kind, operation.device, operation.stream,
            operation.bytes, None)


def description_of_row(event, long_names):
    kind, args = KINDS[event["cat"]], event["args"]
    if kind == "kernel":
        number = re.search(r" \(long name (\d+)\)$", event["name"])
        name = long_names[number[1]] if number else event["name"]
        return (kind, name, args["device"], args["stream"], tuple(args["grid"]),
                tuple(args["block"]))
    direction = event["name"].split()[1] if kind == "memcpy" else None
    return (kind, direction, args["device"], args["stream"], args["bytes"], None)


def same_work(run, operations, tolerance_ns=TOLERANCE_NS):
    """Every operation is there once, as what it was, where and when it ran. Gives the errors."""
    long_names = run.trace["gpubusy"]["long names"]
    by_stream = collections.defaultdict(list)
    for operation in operations:
        by_stream[operation.device, operation.stream].append(operation)
    shown = collections.defaultdict(list)
    for event in run.work:
        shown[event["args"]["device"], event["args"]["stream"]].append(event)
    assert {k: len(v) for k, v in shown.items()} == {k: len(v) for k, v in by_stream.items()}
    errors = []
    for stream, events in shown.items():
        events.sort(key=lambda e: e["ts"])
        truly = sorted(by_stream[stream], key=lambda o: (o.start_ns, o.end_ns))
        for event, operation in zip(events, truly):
            shown_as, truly_was = description_of_row(event, long_names), description(operation)
            assert shown_as == truly_was, (shown_as, truly_was)
            start, end = run.interval(event)
            errors += [start - operation.start_ns, end - operation.end_ns]
    worst = max(map(abs, errors), default=0)
    assert worst <= tolerance_ns, (min(errors), max(errors))
    return errors
