# SPDX-License-Identifier: Apache-2.0
"""What the host does in gaps, against a program that knows (gap_kinds.py), on the simulated device."""

import collections
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("gap_kinds.py")
ROUNDS, WAIT, WARMUP = 3, 2, 1

# How a gap may be called, besides "no_processor": a loaded machine is the truth too.
KINDS = {
    "workers": {"data_loader_workers"},
    "decode": {"runs"},
    "input": {"input"},
    "gil": {"gil"},
    "page_fault": {"page_fault"},
    "output": {"output"},
    "sleep": {"sleep"},
    # Where the interpreter notes that is known for 3.8 to 3.13.
    "collect": {"garbage_collection" if sys.version_info < (3, 14) else "runs"},
    "lock": {"lock"},
    "child": {"child_process"},
}


@pytest.fixture(scope="module")
def recorded(build_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("gaps")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
    steps = ROUNDS * 11
    run = subprocess.run(
        [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-o", directory / "out",
         "--processes", "command", "--wait", str(WAIT), "--warmup", str(WARMUP), "--active",
         str(steps), "--", sys.executable, PROGRAM, directory / "truth.json", str(ROUNDS)],
        env=environment, cwd=directory, capture_output=True, text=True, timeout=240,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout == "done 0.0\n"
    truth = json.loads((directory / "truth.json").read_text())
    report = subprocess.run(
        [build_dir / "bin" / "gpubusy", "report", "--json", directory / "out"],
        env=environment, capture_output=True, text=True, check=True,
    )
    (process,) = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
    return truth, process, run.stderr


def slack_ms(truth):
    """While gpubusy's thread waits for a processor it cannot look, and while the program does it is not
    where a look says that it is: on an idle machine some ms in all, and never all that is checked."""
    return min(truth["kept_off_ms"], sum(g["end_ns"] - g["begin_ns"] for g in truth["gaps"]) / 4e6)


def test_time_goes_to_the_right_line(recorded):
    truth, process, _ = recorded
    gaps = process["host_in_gaps"]
    kept_off = slack_ms(truth)
    assert gaps["seen_ms"] >= 0.95 * gaps["total_ms"] - kept_off
    really, found = collections.Counter(), collections.Counter()
    for gap in truth["gaps"]:
        really[gap["line"]] += (gap["end_ns"] - gap["begin_ns"]) / 1e6
    for row in gaps["rows"]:
        if row["line"] and row["line"]["file"].endswith(PROGRAM.name):
            found[row["line"]["line"]] += row["total_ms"]
    right = sum(min(found[line], ms) for line, ms in really.items())
    assert right >= 0.95 * sum(really.values()) - kept_off, (really, found, kept_off)
    for line, ms in really.items():
        # A look stands for the time halfway to the next: 10 ms of each gap may be another line's.
        assert found[line] >= 0.9 * ms - 10 * ROUNDS - kept_off, (line, ms, found, kept_off)
        assert found[line] <= 1.1 * ms + 10 * ROUNDS + kept_off, (line, ms, found, kept_off)


def test_time_goes_to_the_right_kind(recorded):
    truth, process, _ = recorded
    kind_of_line = {gap["line"]: gap["kind"] for gap in truth["gaps"]}
    by_kind = collections.defaultdict(collections.Counter)
    for row in process["host_in_gaps"]["rows"]:
        if row["line"] and row["line"]["line"] in kind_of_line:
            by_kind[kind_of_line[row["line"]["line"]]][row["kind"]] += row["total_ms"]
    for kind, expected in KINDS.items():
        if kind not in truth["kinds"]:
            continue
        seen = by_kind[kind]
        ready = seen.pop("no_processor", 0)
        if expected != {"runs"}:
            seen["runs"] += 0  # on its way into the wait and out of it
        right = sum(seen[k] for k in expected)
        total = sum(seen.values())
        slack = min(slack_ms(truth), 25 * ROUNDS)
        assert right + ready >= 50 * ROUNDS - slack, (kind, seen, ready, slack)
        assert right >= 0.8 * total - slack, (kind, seen, slack)


def test_holder_of_the_gil(recorded):
    truth, process, _ = recorded
    gil = process["host_in_gaps"]["gil"]
    # Each gap of it is looked at several times, unless there was no processor for that.
    slack = slack_ms(truth) / 5
    assert gil["looks"] >= 3 * ROUNDS - slack
    if gil["looks"] == 0:
        return
    assert gil["known_looks"] >= 0.8 * gil["looks"] - slack, gil
    lines = [row["line"] for row in gil["holders"] if row["line"]]
    assert lines, gil
    assert lines[0]["function"] == "burn" and lines[0]["file"].endswith(PROGRAM.name), gil


def test_report_names_them(recorded):
    _, _, text = recorded
    words = " ".join(text.split())
    assert "What the host did in the gaps, per step" in words
    assert re.search(r"The launching thread was looked at for \d+ % of it: \d+ % gap_kinds.py:\d+ "
                     r"\(Gaps\.\w+\)", words), text
