# SPDX-License-Identifier: Apache-2.0
"""The helper thread that looks into gaps: programs do not notice it (tests/programs/gaps.cpp)."""

import json
import subprocess

import pytest


@pytest.fixture
def case(programs, run_plain, run_preloaded):
    def run(name, **settings):
        plain = run_plain([programs / "gaps", name])
        hooked = run_preloaded([programs / "gaps", name], GPUBUSY_STEP="none", **settings)
        assert hooked.stdout == plain.stdout
        assert hooked.stderr == plain.stderr
        assert hooked.returncode == plain.returncode
        return plain

    return run


@pytest.fixture
def recorded(build_dir, clean_environment, tmp_path):
    """The first process of the recording as `gpubusy report --json` tells it."""

    def read():
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", tmp_path / "out"],
            env=clean_environment, capture_output=True, timeout=60,
        )
        processes = json.loads(result.stdout)["processes"]
        return min(processes, key=lambda p: p["pid"])

    return read


def looks(process):
    return process["host_in_gaps"]["looks"]


def test_a_process_of_one_thread_stays_one(case, recorded):
    """Python warns at os.fork() in a process of several threads, and unshare() fails there."""
    assert case("one_thread").stdout == b"threads 1\n"
    process = recorded()
    assert looks(process) == 0
    assert any("the process has one thread only" in notice for notice in process["notices"])


def test_descriptor_numbers_are_the_programs(case, recorded):
    assert case("descriptors").stdout == b"wrong 0\n"
    assert looks(recorded()) > 0


def test_closing_all_descriptors(case):
    assert case("close_all").stdout == b"bytes 0\n"


def test_process_ends_with_its_last_thread(case, recorded):
    assert case("last_thread").stdout == b"last thread\nexit handler\n"
    assert looks(recorded()) > 0


def test_helper_goes_with_the_last_other_thread(case, recorded):
    assert case("alone_again").stdout == b"threads 1\n"
    assert looks(recorded()) > 0


def test_forks(case, recorded):
    assert case("forks").stdout == b"good 200\n"
    assert looks(recorded()) > 0


def test_signals_and_change_of_user(case):
    plain = case("signals").stdout.split()
    assert plain[0] == b"signals" and plain[2:] == [b"setuid", b"0"]


def test_no_thread_keeps_rights_that_were_given_up(case, recorded):
    assert case("drops_rights").stdout in (b"wrong 0\n", b"not root\n")
    assert looks(recorded()) > 0


@pytest.mark.parametrize("name", ["many_threads", "no_threads"])
def test_threads(case, name):
    assert case(name).stdout == b"end\n"


@pytest.mark.parametrize(
    "name, output", [("exec_in_gap", b"executed\n"), ("exit_at_once", b"leaves\n"),
                     ("killed", b"dies\n")])
def test_ends_in_a_gap(case, recorded, name, output):
    assert case(name).stdout == output
    process = recorded()
    assert looks(process) > 0
    assert process["bad_records"] == process["torn_blocks"] == 0


def test_switched_off(case, recorded):
    case("descriptors", GPUBUSY_GAP_SAMPLING="0")
    assert looks(recorded()) == 0


def test_sleeps_are_named_without_python(case, recorded):
    case("exit_at_once")
    rows = recorded()["host_in_gaps"]["rows"]
    assert rows[0]["kind"] == "sleep" and rows[0]["system_call"] == "clock_nanosleep"
    # Four whole gaps of 15 ms lie between launches.
    assert sum(r["total_ms"] for r in rows if r["kind"] == "sleep") > 50
