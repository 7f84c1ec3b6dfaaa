# SPDX-License-Identifier: Apache-2.0
"""Tables and exports by stack of a program without Python, through the launcher."""

import json
import subprocess

import pytest

PROGRAM, LIBRARIES = "native_frames", "tests/native/libraries"


@pytest.fixture
def run(programs, build_dir, clean_environment, tmp_path):
    if not (programs / PROGRAM).exists() or not (build_dir / LIBRARIES).exists():
        pytest.skip(f"{PROGRAM} or its libraries are not built")
    tool, out = build_dir / "bin" / "gpubusy", tmp_path / "out"

    def run(*arguments):
        return subprocess.run([tool, *map(str, arguments)], env=clean_environment,
                              capture_output=True, text=True, timeout=60)

    recorded = run("-q", "--no-export", "--step", "none", "-o", out, "--", programs / PROGRAM,
                   build_dir / LIBRARIES)
    assert recorded.returncode == 0, recorded.stderr
    return lambda *arguments: run(arguments[0], out, *arguments[1:])


def table(run, by):
    result = run("report", "--by", by, "--top", "0", "--json")
    assert result.returncode == 0, result.stderr
    (process,) = json.loads(result.stdout)["processes"]
    return process["total"], {row["name"]: row for row in process["rows"]}


def test_functions_of_the_program(run):
    total, rows = table(run, "function")
    assert total["launches"] == 14
    (launch,) = [row for row in rows.values() if row["function"].endswith("::launch")]
    assert launch["launches"] == 14


def test_whole_stacks(run):
    total, rows = table(run, "stack")
    assert sum(row["launches"] for row in rows.values()) == 14
    stacks = [row["frames"] for row in rows.values() if row["launches"]]
    assert all(any("::launch" in frame for frame in stack) for stack in stacks)
    assert any(stack[0].startswith("main") for stack in stacks)
    assert any(stack[0] == "..." for stack in stacks)  # the fiber, which has no caller


def test_text(run):
    result = run("report", "--by", "function")
    assert result.returncode == 0 and "::launch" in result.stdout
    (total,) = [line for line in result.stdout.splitlines() if line.endswith("  total")]
    assert total.split()[0] == "14"
    refused = run("report", "--by", "file")
    assert refused.returncode == 125 and "allowed are line, function, operator" in refused.stderr


def test_folded_stacks_of_launches(run):
    result = run("export", "--format", "folded", "--weight", "launches")
    assert result.returncode == 0, result.stderr
    with open(result.stdout.strip(), encoding="utf-8") as file:
        lines = [line.rsplit(" ", 1) for line in file]
    assert sum(int(value) for _, value in lines) == 14
    assert all("::launch" in stack for stack, _ in lines)
