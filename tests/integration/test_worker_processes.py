# SPDX-License-Identifier: Apache-2.0
"""Which processes below the launching one are looked at (tests/programs/worker_processes.cpp), and
that the program does not notice."""

import json
import subprocess

import pytest


@pytest.fixture
def workers(programs, run_plain, run_preloaded, build_dir, clean_environment, tmp_path):
    """Runs a case with and without the library; what the report of the one that launches says."""

    def run(name):
        plain = run_plain([programs / "worker_processes", name])
        hooked = run_preloaded([programs / "worker_processes", name], GPUBUSY_STEP="none")
        assert hooked.stdout == plain.stdout
        assert hooked.stderr == plain.stderr == b""
        assert hooked.returncode == plain.returncode == 0
        report = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", tmp_path / "out"],
            env=clean_environment, capture_output=True, check=True, timeout=60)
        (process,) = json.loads(report.stdout)["processes"]
        assert process["bad_records"] == process["torn_blocks"] == 0
        assert process["host_in_gaps"]["looks"] > 0
        return plain.stdout, process["workers_in_gaps"]

    return run


def test_workers_of_the_next_epoch_take_the_places_of_those_that_ended(workers):
    output, found = workers("epochs")
    assert output == b"ended 60\n"
    assert found["left_out"] == 0
    assert found["started"] > 40 and found["count"] <= 20  # of 60, some of the last epoch


def test_workers_without_room_are_counted_once(workers):
    output, found = workers("crowd")
    assert output == b"ended 40\n"
    assert (found["count"], found["left_out"]) == (32, 8)


def test_workers_of_a_process_of_the_fork_server(workers):
    output, found = workers("served")
    assert output == b"ended 2\n"
    assert (found["count"], found["spawned"]) == (2, False)


def test_a_process_that_was_forked_and_then_runs_another_interpreter(workers):
    output, found = workers("forked_first")
    assert output == b"ended 2\n"
    # The tracker was a process like others until then, and is no worker.
    assert found["spawned"] is True


def test_a_worker_among_many_processes(workers):
    output, found = workers("busy_machine")
    if not output.startswith(b"enough 1 "):
        pytest.skip("no 1,100 processes can be made here")
    assert output == b"enough 1 ended 1\n"
    assert found["count"] == 1


def test_a_program_that_forks_all_the_time(workers):
    output, found = workers("forks")
    assert output == b"good 2000\n"
    assert found["left_out"] == 0
