# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts, beside what the program counts itself (tests/programs/host_counters.cpp)."""

import gzip
import json
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from control_group import Group  # noqa: E402

STEPS = ["--step", "call:cudaDeviceSynchronize", "--wait", "2", "--warmup", "1", "--active", "20"]


@pytest.fixture
def recorded(gpubusy, programs, run, tmp_path):
    """recorded(pages, sleeps, spin_ms, *options) -> the process in the report, the program's lines."""
    program = programs / "host_counters"
    if not program.exists():
        pytest.skip("no CUDA headers")

    def recorded(pages, sleeps, spin_ms, *options, filtered=False, **more):
        result = run([gpubusy, "-q", *STEPS, *options, "-o", "out", "--", program,
                      pages, sleeps, spin_ms, *(["filtered"] if filtered else [])], **more)
        assert (result.returncode, result.stderr) == (0, "wrong 0\n")
        lines = {int(line[0]): [float(word) for word in line[1:]]
                 for line in map(str.split, result.stdout.splitlines())}
        report = run([gpubusy, "report", "--json", "out"])
        [process] = json.loads(report.stdout)["processes"]
        return process, lines

    return recorded


def test_faults_switches_and_time_are_those_of_the_program(recorded):
    process, lines = recorded(500, 10, 4)
    counters = process["host_counters"]
    assert counters["counted_steps"] == 20
    for step in process["steps"]:
        minor, major, voluntary, cpu_ms = lines[step["step"]]
        seen = step["host"]
        # Our own are within: the block that is written, the helper's wake-ups and files.
        assert minor - 50 <= seen["minor_faults"] <= minor + 200, (step, minor)
        assert minor >= 500
        assert abs(seen["major_faults"] - major) <= 20
        assert seen["voluntary_switches"] >= 10
        thread = step["host_step_thread"]
        assert thread["minor_faults"] >= 500
        assert thread["voluntary_switches"] >= 10
        assert seen["user_ms"] + seen["system_ms"] >= 3.5
    # Summed up, what differs by step (the moment of counting) is small.
    judged = [lines[step["step"]] for step in process["steps"]]
    total = counters["process"]
    assert total["minor_faults"] == pytest.approx(sum(j[0] for j in judged), rel=0.1)
    assert total["voluntary_switches"] == pytest.approx(sum(j[2] for j in judged), rel=0.2, abs=50)
    assert total["user_ms"] + total["system_ms"] == pytest.approx(sum(j[3] for j in judged), rel=0.2)


def test_beside_the_steps_the_helper_counts(recorded):
    process, _ = recorded(0, 10, 10)
    counters = process["host_counters"]
    assert counters["samples"] >= 2
    assert 0 < counters["sampled_ms"] <= process["wall_ms"] + 0.001
    # What cannot be read here is not known, with a reason, and never 0.
    known = {"control_group", "machine"}
    for topic, field in (("quota", "throttled_periods"), ("memory", "max_events"),
                         ("pressure", "cpu_some_ms"), ("swap", "pages_in")):
        assert (counters[topic]["source"] in known) == (counters[topic][field] is not None), topic
        assert counters[topic]["source"] != "not_counted"
    if Path("/proc/pressure/cpu").exists():
        assert counters["pressure"]["cpu_some_ms"] is not None


def test_what_the_host_offers(recorded):
    offer = recorded(0, 1, 0)[0]["host_offer"]
    assert offer["usable_processors"] == len(os.sched_getaffinity(0))
    assert offer["online_processors"] >= offer["usable_processors"]
    assert offer["page_bytes"] == os.sysconf("SC_PAGE_SIZE")
    assert offer["memory_bytes"] == pytest.approx(
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), rel=0.01)


def test_pinned_to_one_processor(recorded, gpubusy, run):
    one = {min(os.sched_getaffinity(0))}
    process, _ = recorded(0, 1, 0, preexec_fn=lambda: os.sched_setaffinity(0, one))
    assert process["host_offer"]["usable_processors"] == 1
    assert process["host_offer"]["effective_processors"] <= 1
    if process["host_offer"]["online_processors"] > 1:
        text = run([gpubusy, "report", "out"]).stdout
        assert "Host: 1 of" in text


def test_turned_off(recorded):
    process, _ = recorded(100, 1, 0, "--host-counters", "0")
    counters = process["host_counters"]
    assert counters["counted_steps"] == 0 and counters["process"] is None
    assert counters["samples"] == 0
    assert process["steps"][0]["host"] is None
    assert process["host_offer"]["usable_processors"] > 0  # costs nothing in windows


def test_without_the_helper_there_are_the_edges(recorded):
    process, _ = recorded(100, 1, 0, "--gap-sampling", "0")
    counters = process["host_counters"]
    assert counters["counted_steps"] == 20
    assert counters["samples"] == 0
    assert counters["quota"]["throttled_periods"] is None
    assert counters["quota"]["source"] == "not_counted"


def test_a_program_that_filters_its_system_calls_is_not_counted(recorded):
    process, lines = recorded(100, 1, 0, filtered=True)
    assert lines == {}  # it has not asked either
    assert process["host_offer"] is None
    assert process["host_counters"]["counted_steps"] == 0
    assert process["host_counters"]["samples"] == 0


def test_rows_in_the_trace(recorded, tmp_path, perfetto):
    recorded(200, 10, 10)
    [trace] = (tmp_path / "out").glob("*.pt.trace.json.gz")
    events = json.loads(gzip.open(trace).read())["traceEvents"]
    counters = [e for e in events if e["ph"] == "C"]
    assert {"host: processors in use", "host: page faults per s",
            "host: context switches per s"} <= {e["name"] for e in counters}
    assert all(value >= 0 for e in counters for value in e["args"].values())
    [rows] = perfetto(trace, "select count(*) as n from counter c join process_counter_track t on "
                             "c.track_id = t.id where t.name glob 'host: *'")
    assert rows[0]["n"] > 0 if isinstance(rows[0], dict) else int(rows[0][0]) > 0


# ---- a real quota: needs a control group that may be made here


@pytest.fixture
def quota_group():
    group = Group(10_000, 100_000)
    if group.folder is None:
        pytest.skip("no control group with a quota can be made here")
    yield group
    group.remove()


def test_a_quota_that_is_used_up(recorded, quota_group, gpubusy, run):
    """30 steps of 10 ms of processor time each, with 10 ms in each 100 ms."""
    process, _ = recorded(0, 1, 10, preexec_fn=quota_group.enter)
    offer = process["host_offer"]
    assert (offer["cpu_quota_us"], offer["cpu_period_us"]) == (10_000, 100_000)
    assert offer["effective_processors"] == pytest.approx(0.1)
    quota = process["host_counters"]["quota"]
    assert quota["source"] == "control_group"
    assert quota["periods"] > 0
    assert 0 < quota["throttled_periods"] <= quota["periods"]
    assert quota["throttled_processor_ms"] > 0
    text = run([gpubusy, "report", "out"]).stdout
    assert "the quota is 0.10 (10.0 ms in each 100.0 ms)" in " ".join(text.split())
    assert f"throttled in {quota['throttled_periods']} of {quota['periods']} periods" in " ".join(
        text.split())


def test_the_doctor_knows_the_quota(gpubusy, run, quota_group):
    result = run([gpubusy, "doctor"], preexec_fn=quota_group.enter)
    assert "a quota of 0.1" in result.stdout
