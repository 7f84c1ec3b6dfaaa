#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a report of a large recording takes, and how much memory: ./dev bench.

Ten million events: five million calls and their device times, with steps, Python stacks and looks.
Beside it, in turns, the time that reading the file alone takes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measured(command):
    """Seconds and the largest resident set in bytes of one run."""
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"{command[0]} ended with {child.returncode}")
    return time.perf_counter() - begin, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scenario", default="ten_million")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([options.build / "bin" / "gpubusy_scenario", options.scenario, directory,
                        "recording"], check=True)
        (recording,) = Path(directory).iterdir()
        reports, reads = [], []
        for _ in range(options.rounds):
            reads.append(measured(["cat", str(recording)])[0])
            reports.append(measured([options.build / "bin" / "gpubusy", "report", directory]))
        out = {
            "recording_bytes": recording.stat().st_size,
            "report_seconds": statistics.median(seconds for seconds, _ in reports),
            "report_bytes": max(size for _, size in reports),
            "read_seconds": statistics.median(reads),
        }
    print(f"report of {options.scenario}: {out['report_seconds']:.1f} s, "
          f"{out['report_bytes'] / 2**30:.2f} GiB of memory; the file has "
          f"{out['recording_bytes'] / 2**20:.0f} MiB and is read in {out['read_seconds']:.2f} s")
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
