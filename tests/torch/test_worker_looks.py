# SPDX-License-Identifier: Apache-2.0
"""What loader workers do while the GPU idles, against a program that knows (worker_kinds.py), on the
simulated device. Shares have wide bounds: on a busy machine workers also wait for a processor."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

PROGRAM = Path(__file__).with_name("worker_kinds.py")


def marked(kind):
    (number,) = [n for n, line in enumerate(PROGRAM.read_text().splitlines(), 1)
                 if re.search(r"#.*\b%s\b" % kind, line)]
    return number


@pytest.fixture(scope="module")
def recorded(build_dir, tmp_path_factory):
    """By kind: the report of a run, made once."""
    runs = {}

    def run(kind, **settings):
        if kind in runs:
            return runs[kind]
        directory = tmp_path_factory.mktemp(kind)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
        command = [sys.executable, PROGRAM, kind]
        launcher = [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-q", "-o",
                    directory / "out", "--processes", "command", "--wait", "2", "--warmup", "1",
                    "--active", "16", "--export", "0", "--"]
        result = subprocess.run([*launcher, *command], env={**environment, **settings},
                                cwd=directory, capture_output=True, text=True, timeout=240)
        assert result.returncode == 0, result.stderr
        assert re.fullmatch(r"done \d+ True\n", result.stdout), result.stdout
        report = subprocess.run([build_dir / "bin" / "gpubusy", "report", "--json",
                                 directory / "out"],
                                env=environment, capture_output=True, text=True, check=True)
        (process,) = [p for p in json.loads(report.stdout)["processes"] if p["calls"]]
        assert process["bad_records"] == process["unknown_records"] == 0
        runs[kind] = process
        return process

    return run


def starvation(process):
    (finding,) = [f for f in process["findings"] if f["id"] == "data_starvation"]
    return finding


@pytest.mark.parametrize("kind, bottlenecks, words", [
    ("compute", {"processor", "no_processor"}, "compute"),
    ("sleep", {"sleep"}, "sleep"),
    ("storage", {"storage"}, "wait for storage"),
    ("input", {"input"}, "wait for input"),
    ("lock", {"lock"}, "wait for a lock"),
])
def test_kind_and_line(recorded, kind, bottlenecks, words):
    process = recorded(kind)
    workers = process["workers_in_gaps"]
    assert workers["looks"] >= 10, workers
    assert workers["bottleneck"] in bottlenecks, workers
    lines = {(Path(row["line"]["file"]).name, row["line"]["line"]): row["share"]
             for row in workers["lines"]}
    at = (PROGRAM.name, marked(kind))
    assert at in lines, workers
    assert lines[at] >= (0.4 if kind == "lock" else 0.5), workers
    evidence = starvation(process)["evidence"]
    assert words in evidence
    assert f"worker_kinds.py:{at[1]} (" in evidence, evidence


def test_count_of_workers(recorded):
    for kind, count in (("sleep", 2), ("lock", 4)):
        workers = recorded(kind)["workers_in_gaps"]
        assert workers["count"] == workers["started"] == count
        assert workers["left_out"] == 0


def test_too_many_workers(recorded):
    process = recorded("too_many")
    workers = process["workers_in_gaps"]
    assert workers["bottleneck"] == "no_processor", workers
    # Six that compute on one processor: each is ready without one for most of the time.
    assert workers["ready_share"] > workers["run_share"], workers
    cure = starvation(process)["cure"]
    assert "more workers (6) than processors for them (1 processor)" in cure, cure


def test_spawned_workers_have_no_lines_and_that_is_said(recorded):
    process = recorded("spawn")
    workers = process["workers_in_gaps"]
    assert workers["spawned"] and workers["count"] == 2
    assert workers["looks"] >= 10 and workers["lines"] == []
    assert workers["bottleneck"] in {"processor", "no_processor"}, workers
    assert "interpreters of their own: their lines are not known" in starvation(process)["evidence"]


def test_codes_made_after_the_fork_have_their_own_names(recorded):
    """Two workers make functions that differ in name and file alone, at the same addresses."""
    workers = recorded("made")["workers_in_gaps"]
    made = [row["line"] for row in workers["lines"] if "/made/by_" in row["line"]["file"]]
    assert len({line["file"] for line in made}) == 2, workers
    for line in made:
        pid = re.fullmatch(r"/made/by_(\d+)\.py", line["file"]).group(1)
        assert line["function"] == f"made_{pid}"
        assert line["line"] in (2, 3, 4)
