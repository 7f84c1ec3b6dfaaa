# SPDX-License-Identifier: Apache-2.0
"""Field cases T01 to T12: what traces must be. Every trace that a test of this folder reads is parsed
by the letter and its rows are checked to nest (field_checks.py). T06 and T07: tests/torch.
"""

import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from field_checks import crossings, parse_strictly, rows_of

STEP = ["--step", "call:cudaDeviceSynchronize"]


def schedule_options(wait, warmup, active, repeat=1, skip=0):
    return ["--wait", wait, "--warmup", warmup, "--active", active, "--repeat", repeat,
            "--skip-first", skip]


# ---- T01 -----------------------------------------------------------------------------------------


def windows_of(wait, warmup, active, repeat, skip, steps=100):
    """The schedule's windows by its own definition, as lists of steps that happened."""
    windows = {}
    for step in range(skip, steps):
        cycle, position = divmod(step - skip, wait + warmup + active)
        if (repeat == 0 or cycle < repeat) and position >= wait + warmup:
            windows.setdefault(cycle, []).append(step)
    return list(windows.values())


def test_t01_reference_windows():
    """The case's own three: this file's definition against them."""
    a = windows_of(0, 0, 5, 0, 0)
    assert (len(a), a[0], a[-1]) == (20, [0, 1, 2, 3, 4], [95, 96, 97, 98, 99])
    b = windows_of(0, 1, 10, 0, 0)
    assert (len(b), b[0], b[-1]) == (9, list(range(1, 11)), list(range(89, 99)))
    assert windows_of(1, 1, 3, 2, 2) == [[4, 5, 6], [9, 10, 11]]


SCHEDULES = [*itertools.product([0], [0, 1], [5, 10], [0, 1, 10], [0, 2]), (1, 1, 3, 2, 2)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: "w%d-u%d-a%d-r%d-s%d" % s)
def test_t01_one_file_per_window(both, gpubusy, run, field, schedule):
    """100 steps of one launch each: the windows, the files, the summary and the table that is shown
    before the run agree."""
    active = schedule[2]
    expected = windows_of(*schedule)
    result = both([field("steps"), 100, 1], *STEP, *schedule_options(*schedule))
    assert result.plain.returncode == 5
    seen = []
    for trace in result.out.traces().values():
        window = trace["gpubusy"]["window"]
        marks = [e for e in rows_of(trace, "user_annotation")
                 if e["name"].startswith("ProfilerStep#")]
        numbers = [int(e["name"].split("#")[1]) for e in marks]
        launches = [e for e in rows_of(trace, "cuda_runtime") if e["name"] == "cudaLaunchKernel"]
        assert len(launches) == len(numbers)
        for mark, launch in zip(marks, launches):  # one launch in each step
            assert mark["ts"] <= launch["ts"] <= mark["ts"] + mark["dur"]
        assert window["complete"] == (len(numbers) == active)
        assert window["first_step"] == numbers[0] and window["planned_steps"] == active
        seen.append(numbers)
    assert sorted(seen) == expected
    process = result.out.process
    assert [s["step"] for s in process["steps"]] == sum(expected, [])
    assert process["windows"] == len(expected) and process["steps_seen"] == 100
    table = run([gpubusy, *STEP, *schedule_options(*schedule), "--explain-schedule=100"]).stdout
    shown = [line.split()[0] for line in table.decode().splitlines() if "recorded" in line]
    assert shown == [f"{w[0]}-{w[-1]}" if len(w) > 1 else str(w[0]) for w in expected]


# ---- T02 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps, said, files", [
    (0, ["no CUDA call was intercepted"], []),
    # Begins with --wait 1: two steps never reach the window that ends with step 4.
    (2, ["2 steps were seen", "the first window ends with step 4"], None),
    (4, ["1 of 1 windows ended before their last step", "2 of 3 steps were seen"], [[2, 3]]),
    (5, [], [[2, 3, 4]]),
])
def test_t02_run_shorter_than_its_schedule(gpubusy, run, field, directory, steps, said, files):
    """wait 1, warmup 1, active 3: 5 steps are needed."""
    options = ["-o", "out", *STEP, *schedule_options(1, 1, 3)]
    plain = run([field("steps"), steps, 1])
    ours = run([gpubusy, *options, field("steps"), steps, 1])
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    text = " ".join(ours.stderr.decode().split())
    for words in said:
        assert words in text
    assert ("ended before" in text or "No step" in text) == (steps in (2, 4))
    traces = directory().traces().values()
    numbers = [[int(e["name"].split("#")[1]) for e in rows_of(t, "user_annotation")]
               for t in traces]
    if files is not None:
        assert numbers == files
    for trace in traces:
        window = trace["gpubusy"]["window"]
        # What came before the first step edge is all there is of a run of 2 steps.
        assert window["kind"] == ("scheduled" if steps > 2 else "prelude")
        assert steps <= 2 or window["complete"] == (steps == 5)


def test_t02_steps_that_never_end(gpubusy, run, programs, directory):
    """Launches, but nothing that ends a step: said, and what there is is in a file."""
    ours = run([gpubusy, "-o", "out", *STEP, programs / "launch_many", 20])
    assert (ours.returncode, ours.stdout) == (0, b"launched 20\n")
    text = " ".join(ours.stderr.decode().split())
    assert "No step was seen" in text and "Nothing matched --step call:cudaDeviceSynchronize." in text
    (trace,) = directory().traces().values()
    assert len(rows_of(trace, "cuda_runtime")) == 20


# A schedule that records nothing: `test_launcher.py` has the refusals; without the launcher the
# program runs on.
@pytest.mark.parametrize("name, value", [("GPUBUSY_ACTIVE", "0"), ("GPUBUSY_WAIT", "-3"),
                                         ("GPUBUSY_REPEAT", "often")])
def test_t02_bad_schedule_never_stops_the_program(run, library, field, tmp_path, name, value):
    plain = run([field("steps"), 10, 1])
    hooked = run([field("steps"), 10, 1], env={
        "LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(tmp_path / "out"), name: value})
    assert (hooked.returncode, hooked.stdout) == (plain.returncode, plain.stdout) == (
        5, b"trained 10\n")
    [line] = hooked.stderr.decode().splitlines()
    assert f"{name}='{value}'" in line and "allowed" in line


# ---- T03 -----------------------------------------------------------------------------------------


def test_t03_names_of_kernels(both, field, directory):
    """As odd_names.cpp has them. What is no UTF-8 becomes U+FFFD, one for each byte."""
    result = both([field("odd_names")], "--step", "none", simulate=True)
    (trace,) = result.out.traces().values()
    names = {e["name"] for e in rows_of(trace, "kernel")}
    long = next(iter(name for name in names if name.startswith("wide<")))
    assert names == {
        "control\x01\x1f\x7f", 'quote"back\\slash/', "new\nline\ttab\r", "invalid" + 3 * "\ufffd",
        "\u6838\u5fc3_kernel", "surrogate" + 3 * "\ufffd" + "!", "</script>&<b>", long,
    }
    # 10,006 characters: once at the top, cut and with its number in the two rows.
    number = re.search(r"\(long name (\d+)\)$", long)[1]
    assert trace["gpubusy"]["long names"] == {number: "wide<" + 10_000 * "T" + ">"}
    assert len(long) < 300
    (path,) = directory().path.glob("*.pt.trace.json.gz")
    assert path.stat().st_size < 20_000
    text = result.out.text()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text), "nothing reaches the terminal"


def test_t03_names_of_files_and_functions(both, toy_cuda, tmp_path):
    """A path and a function in CJK, a quote and a line end in the folder's name."""
    folder = tmp_path / 'f"\\o\nl\x01der 日本'
    folder.mkdir()
    script = folder / "列车.py"
    script.write_text(
        "import ctypes, sys\n"
        "def 训练(cuda):\n"
        "    return cuda.cudaLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0)\n"
        "print(训练(ctypes.CDLL(sys.argv[1])))\n", encoding="utf-8")
    result = both([sys.executable, script, toy_cuda], "--step", "none")
    assert result.plain.stdout == b"0\n"
    (trace,) = result.out.traces().values()
    (launch,) = rows_of(trace, "cuda_runtime")
    assert launch["args"]["Python"].endswith("列车.py:3 (训练)")
    assert f"{script}(3): 训练" in launch["args"]["Call stack"]
    assert json.dumps(result.out.report())


def test_t03_names_that_are_no_utf8(both, toy_cuda, tmp_path):
    """The bytes of a file name are the file system's business."""
    folder = os.fsencode(tmp_path) + b"/la\xfft\xe9in"
    os.mkdir(folder)
    script = folder + b"/s.py"
    with open(script, "w") as file:
        file.write("import ctypes, sys\n"
                   "ctypes.CDLL(sys.argv[1]).cudaLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0)\n")
    result = both([sys.executable, os.fsdecode(script), toy_cuda], "--step", "none")
    (trace,) = result.out.traces().values()
    (launch,) = rows_of(trace, "cuda_runtime")
    assert re.search(r"la.+t.+in/s\.py\(2\)", launch["args"]["Call stack"])


# ---- T04 -----------------------------------------------------------------------------------------
# The case's slices as a recording: tests/unit/analysis_field.cpp. Here the checker that all tests of
# this folder use, and a run whose kernels truly overlap.


def slices(*rows):
    return {"traceEvents": [dict(ph="X", pid=1, tid=1, name=str(i), ts=ts, dur=dur)
                            for i, (ts, dur) in enumerate(rows)]}


def test_t04_the_checker_finds_what_viewers_drop():
    assert crossings(slices((3, 3.776), (5, 2)))  # the case's two kernels: 3-6.776 and 5-7
    # 1 ns at a large timestamp, which a double still holds: 7.8e12 us has steps of 0.98 ns.
    base = 7_889_237_000_000.0
    assert crossings(slices((base, 1.001), (base + 1, 1)))
    assert not crossings(slices((base, 1), (base + 1, 1)))
    assert crossings(slices((0, 1), (0.5, 0.501)))  # a child that ends 1 ns behind its parent
    assert not crossings(slices((0, 1), (0, 1), (0, 0.5), (0.5, 0.5), (1, 0)))


@pytest.mark.parametrize("source, graph_rows", [("cupti", 20 * 5), ("events", 20)])
def test_t04_events_in_are_events_out(both, programs, truth_logs, source, graph_rows):
    """Four threads, kernels that overlap, copies, and a graph of five kernels that is launched 20 times
    (one row each where CUDA events are all there is): rows nest (the checker has run), and each of the
    device's operations is there once."""
    if not (programs / "stress").exists():
        pytest.skip("needs the simulated device")
    result = both([programs / "stress", 100], "--step", "none", "--device-time", source,
                  simulate=True)
    (trace,) = result.out.traces().values()
    (log,) = truth_logs("ours")
    rows = rows_of(trace, "kernel", "gpu_memcpy", "gpu_memset")
    in_graphs = [e for e in rows if "graph" in e["name"].lower()]
    assert len(in_graphs) == graph_rows
    single = [o for o in log.operations if o.graph == 0 and o.kind in ("kernel", "memcpy", "memset")]
    # A thread's first call has no context yet in which an event could be recorded: said in its row.
    untimed = [e for e in rows_of(trace, "cuda_runtime")
               if "device time" in e["args"] and e["args"].get("result", 0) == 0 and
               re.search("Launch|Mem(cpy|set)", e["name"]) and "error" not in e["args"]]
    assert len(untimed) <= (0 if source == "cupti" else 2)
    assert len(rows) - len(in_graphs) + len(untimed) == len(single)
    assert len({(e["pid"], e["tid"]) for e in rows}) >= 5  # four threads' streams, and the graph's


# ---- T05 -----------------------------------------------------------------------------------------

RANKS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "none": None,
}


@pytest.mark.parametrize("family", RANKS)
def test_t05_eight_ranks_one_directory(gpubusy, field, clean_environment, directory, tmp_path,
                                       family):
    """The same output directory, host and process id, at the same time; then once more."""
    unshare = ["unshare", "--fork", "--pid"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("no right to make PID name spaces, without which process ids differ")
    command = [str(word) for word in (
        *unshare, gpubusy, "-q", "-o", tmp_path / "out", *STEP, *schedule_options(0, 0, 2), "--",
        field("steps"), 4, 3)]

    def start(rank):
        env = {k: v for k, v in clean_environment.items()
               if not k.startswith(("SLURM_", "OMPI_", "PMI_")) and "RANK" not in k}
        if RANKS[family]:
            env.update(zip(RANKS[family], (str(rank), "8", str(rank % 4))))
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    before = {}
    for turn in (1, 2):
        for process in [start(rank) for rank in range(8)]:
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out, err) == (5, b"trained 4\n", b"")
        files = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
        assert {name: files[name] for name in before} == before, "the first run's are untouched"
        before = files
        traces = directory().traces()
        assert len(directory().recordings) == len(traces) == 8 * turn
        assert len({t["gpubusy"]["process id"] for t in traces.values()}) == 1
        told = sorted(
            (t["distributedInfo"]["rank"], t["distributedInfo"]["world_size"],
             t["gpubusy"]["local rank"]) if "distributedInfo" in t else None
            for t in traces.values()) if family != "none" else None
        if family == "none":
            assert not any("distributedInfo" in t for t in traces.values())
        else:
            assert told == sorted([(rank, 8, rank % 4) for rank in range(8)] * turn)
        for trace in traces.values():
            launches = [e for e in rows_of(trace, "cuda_runtime") if "Launch" in e["name"]]
            assert len(launches) == 2 * 3  # 2 steps of 3: nothing of another rank
    assert len(before) == 3 * 16  # of each process a recording, its names and a trace


# ---- T08 -----------------------------------------------------------------------------------------


def test_t08_steps_behind_the_window_cost_what_they_did(gpubusy, run, field, tmp_path):
    """The case has 3,000 steps of 2 ms: 1,000 here, four runs by turns. A step has 10,000 launches,
    which cost 4 ns each outside a window (2 % of 2 ms) and 100 ns in one (50 %): what stays on behind
    it cannot hide below 15 %. CPU time of the thread, since the machine has other users; the wall
    time, which alone shows waiting, has a wider bound."""
    steps, window = 1000, slice(100, 106)

    def lines(command):
        result = run(command)
        assert result.returncode == 0, result.stderr
        rows = [tuple(map(int, line.split())) for line in result.stdout.decode().splitlines()]
        assert len(rows) == steps
        return rows

    bare, ours = [], []
    for turn in range(2):
        bare.append(lines([field("steady_steps"), steps]))
        ours.append(lines([gpubusy, "-q", "--no-export", "-o", f"out{turn}", *STEP,
                           *schedule_options(99, 1, 6), "--", field("steady_steps"), steps]))

    def median(runs, part, column):
        return min(statistics.median(row[column] for row in rows[part]) for rows in runs)

    early, late = slice(10, 95), slice(120, None)
    recorded = median(ours, window, 0)
    for column, bound in ((0, 1.15), (1, 1.4)):
        before, after = median(ours, early, column), median(ours, late, column)
        native = median(bare, late, column)
        print(f"{'cpu' if column == 0 else 'wall'}: before {before / 1e3:.0f} us, after "
              f"{after / 1e3:.0f} us, bare {native / 1e3:.0f} us, recorded {recorded / 1e3:.0f} us")
        assert after < before * bound
        assert after < native * bound
    assert recorded > median(ours, late, 0) * 1.1, "the window is where it was meant to be"
    for rows in ours:  # what the window took is given back, but for one thread's block (64 KiB)
        assert rows[-1][2] - rows[95][2] < 512


# ---- T09 -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_steps(build_dir, tmp_path_factory):
    pytest.importorskip("torch")
    from conftest import Directory

    place = tmp_path_factory.mktemp("torch")
    env = {k: v for k, v in os.environ.items()
           if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"}
    script = Path(__file__).parent / "torch_steps.py"
    result = subprocess.run(
        [str(w) for w in (build_dir / "bin" / "gpubusy-sim", "--set", "context_ms=1",
                          build_dir / "bin" / "gpubusy", "-q", "-o", place / "out",
                          *schedule_options(10, 0, 5), "--", sys.executable, script, place / "pids")],
        env=env, capture_output=True, timeout=300, cwd=place)
    assert result.returncode == 0, result.stderr
    assert [line.split()[1] for line in result.stdout.decode().splitlines()] == ["0"] * 5
    out = Directory(place / "out", build_dir, env)
    pids = json.loads((place / "pids").read_text())
    reports = {p["pid"]: p for p in out.processes}
    traces = {t["gpubusy"]["process id"]: t for t in out.traces().values()}
    return {loop: (reports[pid], traces[pid]) for loop, pid in pids.items()}


@pytest.mark.parametrize("loop", ["two_optimizers", "accumulation", "validation", "explicit_marks"])
def test_t09_a_hundred_iterations_are_a_hundred_steps(torch_steps, loop):
    """Two optimizers are not two steps, four backward passes are one, five validations are none, and
    the program's own marks are not added to the optimizer's."""
    report, trace = torch_steps[loop]
    assert report["steps_seen"] == 100
    assert report["step_source"] == "optimizer step"
    assert trace["gpubusy"]["step source"] == "optimizer step"
    marks = [e["name"] for e in rows_of(trace, "user_annotation")]
    assert [m for m in marks if m.startswith("ProfilerStep#")] == [
        f"ProfilerStep#{n}" for n in range(10, 15)]


def test_t09_inference_has_no_steps_and_says_so(torch_steps):
    report, trace = torch_steps["inference"]
    assert report["steps_seen"] == 0 and report["mode"] == "passes"
    assert len(report["steps"]) == 98  # the first and the last turn of the loop are left out
    assert any("No step was seen" in w for w in report["warnings"])
    assert trace["gpubusy"]["step source"] == "none"


# ---- T12 -----------------------------------------------------------------------------------------


def test_t12_budget_of_the_recording(gpubusy, run, programs, directory):
    """The case has 10 million events and 100 MB: a tenth of both, which is the same 10 bytes per
    event. 64 bytes are needed, so most are lost, and everybody says so."""
    budget = 10 << 20
    ours = run([gpubusy, "-o", "out", "--step", "none", "--max-size", "10M",
                programs / "launch_many", 1_000_000])
    assert (ours.returncode, ours.stdout) == (0, b"launched 1000000\n")
    text = " ".join(ours.stderr.decode().split())
    assert "its size limit (GPUBUSY_MAX_SIZE) was reached" in text
    out = directory()
    (recording,) = out.recordings
    assert recording.stat().st_size <= budget + 64 * 1024  # the header's block
    process = out.process
    # Whole records only. A few that are lost are no calls (the window's end, a notice).
    assert 0 <= process["calls"] + process["lost_records"] - 1_000_000 <= 8
    assert process["bad_records"] == process["torn_blocks"] == 0
    (trace,) = out.traces().values()
    assert trace["truncated"] is True
    assert len(rows_of(trace, "cuda_runtime")) == process["calls"] > 100_000
    (mark,) = [e for e in trace["traceEvents"] if e["name"].startswith("Truncated: ")]
    assert f"{process['lost_records']} records lost" in mark["name"]
    assert trace["gpubusy"]["lost records"] == process["lost_records"]


def test_t12_the_whole_budget(gpubusy, run, programs, directory):
    """10 million events and 100 MB, without the trace, which is a file of some 400 MB then."""
    ours = run([gpubusy, "-o", "out", "--step", "none", "--max-size", "100M", "--no-export",
                programs / "launch_many", 10_000_000], timeout=120)
    assert (ours.returncode, ours.stdout) == (0, b"launched 10000000\n")
    assert "its size limit (GPUBUSY_MAX_SIZE) was reached" in " ".join(ours.stderr.decode().split())
    (recording,) = directory().recordings
    assert recording.stat().st_size <= (100 << 20) + 64 * 1024
    process = directory().process
    assert 0 <= process["calls"] + process["lost_records"] - 10_000_000 <= 8
    assert process["calls"] > 1_000_000
    assert process["bad_records"] == process["torn_blocks"] == 0


def test_t12_a_step_as_long_as_the_run(gpubusy, run, field, directory):
    """The step that was too large for the budget is named."""
    ours = run([gpubusy, "-o", "out", *STEP, *schedule_options(0, 0, 1), "--max-size", "2M",
                field("steps"), 1, 200_000])
    assert (ours.returncode, ours.stdout) == (5, b"trained 1\n")
    assert "Recording stopped early in step 0, after 0 of 1 steps" in " ".join(
        ours.stderr.decode().split())
    (trace,) = directory().traces().values()
    assert trace["truncated"] is True and trace["gpubusy"]["window"]["complete"] is False


def test_t12_memory_of_the_recorder(gpubusy, run, field, directory):
    """1,000,000 recorded launches in one step take no more memory than the first thousand: the file's
    pages are not the process's."""
    code = ("import resource, subprocess, sys; r = subprocess.run(sys.argv[1:]); "
            "print(r.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")

    def peak_kib(launches):
        result = run([gpubusy, "-q", "--no-export", "-o", f"out{launches}", *STEP,
                      *schedule_options(0, 0, 1), "--", sys.executable, "-c", code, field("steps"),
                      1, launches])
        status, peak = result.stdout.decode().split()[-2:]
        assert status == "5"
        assert directory(f"out{launches}").process["calls"] == launches + 1
        return int(peak)

    assert peak_kib(1_000_000) - peak_kib(1_000) < 2048
