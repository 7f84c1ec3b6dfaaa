#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo must show what it claims: starved is starved, cured is not, traces are there."""

import json
import subprocess
import sys
from pathlib import Path


def report(directory):
    text = subprocess.run(
        ["build/dev/bin/gpubusy", "report", "--json", str(directory)],
        check=True, capture_output=True, text=True,
    ).stdout
    (process,) = json.loads(text)["processes"]
    return process


def waiting_share(process):
    return process["idle_ms"]["step_start"] / process["wall_ms"]


def main():
    demo = Path(sys.argv[1])
    starved, cured = report(demo / "starved"), report(demo / "cured")
    problems = []
    for name, process in (("starved", starved), ("cured", cured)):
        if len(process["steps"]) < 10:
            problems.append(f"{name}: only {len(process['steps'])} steps were judged")
        if not list((demo / name).glob("*.trace.json.gz")):
            problems.append(f"{name}: no trace")
    if problems:
        sys.exit("\n".join(problems))
    before, after = waiting_share(starved), waiting_share(cured)
    print(f"idle at the start of a step: starved {before:.1%}, cured {after:.1%}")
    if before < 0.5:
        problems.append("starved: less than half of a step is idle at its start")
    if after > 0.10:
        problems.append("cured: more than a tenth of a step is idle at its start")
    problem_ids = [f["id"] for f in starved["findings"] if f["problem"]]
    if problem_ids[:1] != ["data_starvation"]:
        problems.append(f"starved: the first finding is not data_starvation: {problem_ids}")
    if problems:
        sys.exit("\n".join(problems))


main()
