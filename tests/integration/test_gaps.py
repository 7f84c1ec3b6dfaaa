# SPDX-License-Identifier: Apache-2.0
"""The helper thread that looks into gaps: programs do not notice it (tests/programs/gaps.cpp)."""

import json
import re
import shutil
import subprocess
import sys

import pytest


@pytest.fixture
def case(programs, run_plain, run_preloaded):
    def run(name, **settings):
        plain = run_plain([programs / "gaps", name])
        settings = {"GPUBUSY_STEP": "none", **settings}
        hooked = run_preloaded([programs / "gaps", name], **settings)
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


def test_pipes_are_closed_while_the_helper_waits_for_a_processor(case):
    for _ in range(3):
        assert case("busy_pipe").stdout == b"read 0\n"


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind here")
def test_valgrind_does_not_meet_the_helper(programs, run_preloaded):
    result = run_preloaded(["valgrind", "-q", programs / "gaps", "descriptors"], GPUBUSY_STEP="none")
    assert (result.returncode, result.stdout) == (0, b"wrong 0\n")


def test_closing_all_descriptors(case):
    assert case("close_all").stdout == b"bytes 0\n"


def test_process_ends_with_its_last_thread(case, recorded):
    assert case("last_thread").stdout == b"last thread\nexit handler\n"
    assert looks(recorded()) > 0


def test_helper_goes_with_the_last_other_thread(case, recorded):
    assert case("alone_again").stdout == b"threads 1\n"
    assert looks(recorded()) > 0


def test_helper_goes_also_where_there_are_no_gaps(case):
    # What interrupts the program shall be no gap.
    settings = {"GPUBUSY_GAP_THRESHOLD": "100000"}
    assert case("alone_and_busy", **settings).stdout == b"threads 1\n"


def test_helper_is_gone_when_a_process_of_one_thread_forks(programs, run_preloaded, recorded):
    # Seldom later than the fork waits for, and on a busy machine only: then the output is another.
    result = run_preloaded([programs / "gaps", "forks_alone"], GPUBUSY_STEP="none")
    assert (result.returncode, result.stderr) == (0, b"")
    good, late = map(int, re.fullmatch(rb"good (\d+) late (\d+)\n", result.stdout).groups())
    assert good + late == 20 and good > late
    assert looks(recorded()) > 0


def test_helper_shares_no_directory_with_a_thread(case, recorded):
    assert case("name_space").stdout.startswith(b"setns ")
    assert looks(recorded()) > 0


def test_a_program_that_filters_its_system_calls_has_no_helper(case, recorded):
    assert case("sandboxed").stdout == b"end\n"
    process = recorded()
    assert looks(process) == 0
    assert any("seccomp" in notice for notice in process["notices"])


def test_a_filter_of_the_main_thread_is_seen_from_outside(case, recorded):
    assert case("main_sandboxed", GPUBUSY_STEP="call:cudaLaunchKernel").stdout == b"end\n"
    assert looks(recorded()) > 0


def test_a_filter_is_seen_behind_many_groups(case):
    output = case("many_groups", GPUBUSY_STEP="call:cudaLaunchKernel").stdout
    assert output in (b"end\n", b"not root\n")


def test_a_filter_that_was_there_before(case, recorded):
    """Whether the program adds one is asked of /proc: prctl(PR_GET_SECCOMP) would end it."""
    assert case("filtered_descriptors").stdout == b"wrong 0\n"
    process = recorded()
    assert looks(process) > 0 and process["host_offer"] is not None


def test_a_filter_that_was_there_before_with_all_turned_off(case, recorded):
    case("filtered_descriptors", GPUBUSY_GAP_SAMPLING="0", GPUBUSY_HOST_COUNTERS="0")
    process = recorded()
    assert looks(process) == 0 and process["host_offer"] is not None


def test_a_filter_behind_one_that_was_there_before(case, recorded):
    assert case("filtered_twice").stdout == b"end\n"
    process = recorded()
    assert looks(process) == 0
    assert any("seccomp" in notice for notice in process["notices"])


@pytest.mark.parametrize("name", ["full_table", "filtered_full_table"])
def test_no_descriptor_is_free(case, recorded, name):
    assert case(name).stdout == b"full 1\n"
    process = recorded()
    assert looks(process) > 0
    assert not any("seccomp" in notice for notice in process["notices"])


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


def test_the_first_process_of_a_container(programs, run_plain, run_preloaded, recorded):
    """Its id, 1, stands in many places of a thread's control block."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", programs / "gaps", "descriptors"]
    if run_plain(command).returncode != 0:
        pytest.skip("no PID namespace can be made here")
    result = run_preloaded(command, GPUBUSY_STEP="none")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"wrong 0\n", b"")
    process = recorded()
    assert process["pid"] == 1 and looks(process) > 0


def test_switched_off(case, recorded):
    case("descriptors", GPUBUSY_GAP_SAMPLING="0")
    assert looks(recorded()) == 0


def test_sleeps_are_named_without_python(case, recorded):
    case("exit_at_once")
    rows = recorded()["host_in_gaps"]["rows"]
    assert rows[0]["kind"] == "sleep" and rows[0]["system_call"] == "clock_nanosleep"
    # Four whole gaps of 15 ms lie between launches.
    assert sum(r["total_ms"] for r in rows if r["kind"] == "sleep") > 50


# Chains of functions that come and go all the time, some of them made anew: f3_0 calls f3_1 …
STORM = """
import ctypes, sys, threading, time

class Dim3(ctypes.Structure):
    _fields_ = [(c, ctypes.c_uint) for c in "xyz"]

launch = ctypes.CDLL(sys.argv[1]).cudaLaunchKernel
launch.argtypes = [ctypes.c_void_p, Dim3, Dim3, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
one = Dim3(1, 1, 1)
DEPTH = 6

def make(i):
    names = {}
    for d in range(DEPTH):
        inner = f"f{i}_{d + 1}(n)" if d + 1 < DEPTH else "sum(x * x for x in range(n))"
        exec(compile(f"def f{i}_{d}(n):\\n    return {inner}\\n", f"/chain/{i}.py", "exec"), names)
    return names[f"f{i}_0"]

def storm(seconds):
    end = time.monotonic() + seconds
    chains = [make(i) for i in range(20)]
    turn = 0
    while time.monotonic() < end:
        for i, chain in enumerate(chains):
            chain(turn % 50 * 60)
            turn += 1
        chains[turn // 20 % 20] = make(turn // 20 % 20)

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
for _ in range(60):
    launch(ctypes.cast(launch, ctypes.c_void_p), one, one, None, 0, None)
    storm(0.05)
print("end", flush=True)
"""


def test_frames_of_a_thread_that_runs_are_never_mixed_up(
        programs, run_preloaded, build_dir, clean_environment, tmp_path):
    script = tmp_path / "storm.py"
    script.write_text(STORM)
    result = run_preloaded([sys.executable, script, programs / "libgpubusy_test_toy_cuda.so"],
                           GPUBUSY_STEP="none")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"end\n", b"")
    subprocess.run(
        [build_dir / "bin" / "gpubusy", "export", "--no-compress", tmp_path / "out"],
        env=clean_environment, check=True, capture_output=True, timeout=60,
    )
    (trace,) = (tmp_path / "out").glob("*.pt.trace.json")
    in_chain = 0
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("cat") != "gap" or "Call stack" not in event["args"]:
            continue
        frames = re.findall(r"/chain/(\d+)\.py\((\d+)\): f(\d+)_(\d+)(<locals>)?(?:;|$)",
                            event["args"]["Call stack"])
        # Outermost first; inner ones may be left out.
        frames = [tuple(map(int, f[:4])) for f in reversed(frames)]
        assert [f[3] for f in frames] == list(range(len(frames))), event
        assert len({f[0] for f in frames} | {f[2] for f in frames}) <= 1, event
        in_chain += len(frames) > 0
    assert in_chain >= 5  # not in vain: 60 silences of 50 ms, each met by looks
