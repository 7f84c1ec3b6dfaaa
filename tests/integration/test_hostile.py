# SPDX-License-Identifier: Apache-2.0
"""Programs that take away what the helper thread looks with (tests/programs/hostile.cpp): they
behave as without the library, and what is recorded is whole and says nothing that is not so."""

import json
import subprocess

import pytest

CASES = ["vforks", "not_dumpable", "locked_up", "unmounted", "no_memory", "small_stacks",
         "odd_children", "fixed_numbers", "moved_about", "strict_thread", "other_ids", "traced",
         "locked_memory", "stopped", "executed_by_a_thread", "first_thread_gone", "other_table",
         "real_time", "small_files", "spawns", "may_open_nothing", "alternate_stacks"]


@pytest.fixture
def same(programs, run_plain, run_preloaded, build_dir, clean_environment, tmp_path):
    """Runs a case with and without; the recorded processes as the report tells them."""

    def run(name, **settings):
        command = [programs / "hostile", name]
        plain, hooked = run_plain(command), run_preloaded(command, **settings)
        assert (hooked.returncode, hooked.stdout, hooked.stderr) == (
            plain.returncode, plain.stdout, plain.stderr)
        assert plain.returncode in (0, 7)
        report = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", tmp_path / "out"],
            env=clean_environment, capture_output=True, timeout=60)
        processes = json.loads(report.stdout)["processes"] if plain.stdout != b"not root\n" else []
        for process in processes:
            assert process["bad_records"] == process["torn_blocks"] == 0
        return plain.stdout, processes

    return run


@pytest.mark.parametrize("name", CASES)
def test_one_long_window(same, name):
    same(name, GPUBUSY_STEP="none")


@pytest.mark.parametrize("name", CASES)
def test_windows_that_come_and_go(same, name):
    same(name, GPUBUSY_STEP="call:cudaLaunchKernel", GPUBUSY_WAIT="1", GPUBUSY_WARMUP="1",
         GPUBUSY_ACTIVE="2", GPUBUSY_REPEAT="0", GPUBUSY_GAP_THRESHOLD="200")


def test_ids_that_are_not_those_of_proc(same):
    """In a process name space of its own, but with the /proc of the one above."""
    output, processes = same("other_ids", GPUBUSY_STEP="none")
    if output == b"not root\n":
        pytest.skip("needs root")
    assert output == b"id 1\n"
    # The children of the machine's first process are none of ours.
    [process] = processes
    assert process["host_in_gaps"]["looks"] > 0 and process["workers_in_gaps"]["looks"] == 0
    assert any("PID namespace" in notice for notice in process["notices"])


def test_a_small_stack_starts_the_export(same):
    """Windows end, and their traces begin, in a thread of 16 KiB."""
    same("small_stacks", GPUBUSY_EXPORT="1", GPUBUSY_STEP="call:cudaLaunchKernel",
         GPUBUSY_WAIT="1", GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="1", GPUBUSY_REPEAT="0")
