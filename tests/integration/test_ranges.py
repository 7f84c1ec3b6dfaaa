# SPDX-License-Identifier: Apache-2.0
"""Ranges of NVTX, cuDNN and NCCL, through the library and the launcher (tests/programs/ranges)."""

import gzip
import json
import os
import subprocess

import pytest


@pytest.fixture
def nvtx(programs):
    path = programs / "ranges" / "nvtx"
    if not path.exists():
        pytest.skip("no NVTX headers where this was built")
    return path


@pytest.fixture(autouse=True)
def no_tool(clean_environment):
    clean_environment.pop("NVTX_INJECTION64_PATH", None)


@pytest.fixture
def ranges(nvtx, run_preloaded):
    """Runs a case with the library alone and gives its output."""

    def run(case, **settings):
        settings = {"GPUBUSY_STEP": "none", "GPUBUSY_DEVICE_TIME": "off", **settings}
        result = run_preloaded([nvtx, case], timeout=90, **settings)
        assert (result.returncode, result.stderr) == (0, b"")
        return result.stdout.decode()

    return run


@pytest.fixture
def tell(build_dir, clean_environment, tmp_path):
    """What gpubusy report and export make of tmp_path/out: processes, traces by their windows."""

    def tell(directory=tmp_path / "out"):
        def gpubusy(*words):
            return subprocess.run([build_dir / "bin" / "gpubusy", *words], env=clean_environment,
                                  capture_output=True, timeout=60)

        report = gpubusy("report", "--json", directory)
        assert report.stdout, report.stderr
        gpubusy("export", directory, "--quiet")
        traces = [json.loads(gzip.open(p).read())
                  for p in sorted(directory.glob("*.pt.trace.json.gz"))]
        return json.loads(report.stdout)["processes"], traces

    return tell


def rows(trace, name=None, ph="X"):
    return [e for e in trace["traceEvents"]
            if e.get("cat") == "user_annotation" and e["ph"] == ph
            and not e["name"].startswith("ProfilerStep#") and name in (None, e["name"])]


def launches(trace):
    return [e for e in trace["traceEvents"] if e["name"] == "cudaLaunchKernel"]


def inside(event, outer):
    return outer["ts"] <= event["ts"] and event["ts"] + event["dur"] <= outer["ts"] + outer["dur"]


VALUES = """pop of nothing 1
domains 1 1 1
strings 1 1 1
push 0 1 0 1
pop 1 1 0 0 1 1
"""


def test_what_the_program_gets_and_what_is_recorded(ranges, tell):
    assert ranges("values") == VALUES
    (process,), (trace,) = tell()
    assert process["lost_records"] == process["bad_records"] == process["unknown_records"] == 0
    by_name = {e["name"]: e for e in rows(trace)}
    outer, inner = by_name["outer"], by_name["innér"]
    assert inside(inner, outer) and outer["tid"] == inner["tid"] == process["pid"]
    first = by_name["first of the domain"]
    assert first["args"] == {"domain": "dömain", "category": "déjà", "payload": -5,
                             "colour": "#ff102030"}
    assert by_name["registered"]["args"] == {"domain": "dömain", "payload": 2.5}
    payloads = {"uint64": 2**64 - 1, "uint32": 2**32 - 1, "int32": -7, "float": 0.5}
    for name, value in payloads.items():
        assert by_name[name]["args"] == {"category": "three", "payload": value}
        assert sum(inside(c, by_name[name]) for c in launches(trace)) == 1
    assert "payload" not in by_name["extension"]["args"]
    # A struct that ends before its message, no struct, no text: ranges without a name.
    assert len(rows(trace, "(no name)")) == 3
    assert by_name["😀 wide"]["args"]["domain"] == "dömain"  # registered, used after the end
    (mark,) = rows(trace, "mark", "i")
    assert mark["s"] == "t" and mark["tid"] == process["pid"]
    assert rows(trace, "mark of the wide domain", "i")[0]["args"] == {"domain": "wide 日本"}
    (cut,) = [e for e in rows(trace) if e["name"].startswith("xxx")]
    assert cut["args"]["name was cut"] is True
    assert "ranges: 1 texts were cut" in process["notices"]
    names = [e["args"]["name"] for e in trace["traceEvents"]
             if e["ph"] == "M" and e["name"] == "thread_name"]
    assert f"thread {process['pid']} (the main one)" in names
    assert process["ranges"][0]["name"] == "outer"


def test_without_a_tool_the_program_gets_what_nvtx_says(nvtx, run_plain, run_preloaded, tmp_path):
    """Without settings, or with bad ones, there is no tool: -2 is NVTX's word for that."""
    plain = run_plain([nvtx, "values"])
    assert b"push -2 -2 -2 -2" in plain.stdout
    for output, settings in ((None, {}), (tmp_path / "out", {"GPUBUSY_WAIT": "x"})):
        hooked = run_preloaded([nvtx, "values"], output=output, **settings)
        assert hooked.stdout == plain.stdout


def test_threads(ranges, tell):
    assert ranges("threads") == "ids 1 1 1\n"
    (process,), (trace,) = tell()
    (across,), (second,) = rows(trace, "across"), rows(trace, "ovérlapping")
    main = process["pid"]
    assert across["args"]["thread"] == second["args"]["thread"] == main
    assert across["tid"] != second["tid"] and min(across["tid"], second["tid"]) >= 900_000_000
    (worker,) = rows(trace, "of the worker")
    assert worker["tid"] not in (main, across["tid"], second["tid"])
    (unended,) = rows(trace, "never popped")
    assert unended["args"]["still open"] is True and unended["tid"] == worker["tid"]
    names = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"]
             if e["ph"] == "M" and e["name"] == "thread_name"}
    assert names[worker["tid"]] == f"thread {worker['tid']} (wörker)"
    assert len(rows(trace, "inside")) == len(rows(trace, "started")) == 4000
    for t in range(8):
        mine = rows(trace, f"thread {t}")
        assert len(mine) == 500 and len({e["tid"] for e in mine}) == 1
    assert process["lost_records"] == process["bad_records"] == 0


def test_fork(ranges, tell):
    out = ranges("forks")
    assert out == "child push 2\nchild pop 2 1 0 1\nchild 0\nparent pop 1 0\n"
    processes, traces = tell()
    assert len(processes) == len(traces) == 2
    by_pid = {t["gpubusy"]["process id"]: t for t in traces}
    (child,) = [p for p in processes if p["parent_pid"] in by_pid]
    (parent,) = [p for p in processes if p is not child]
    in_parent = {e["name"] for e in rows(by_pid[parent["pid"]])}
    in_child = {e["name"] for e in rows(by_pid[child["pid"]])}
    assert in_parent == {"outer", "inner", "started by the parent"}
    # The child ends what its parent began; that began before its own recording.
    assert in_child == {"outer", "inner", "of the child", "started by the parent"}
    assert "began before the window (us)" in rows(by_pid[child["pid"]], "outer")[0]["args"]
    assert all(p["bad_records"] == p["lost_records"] == 0 for p in processes)


def test_fork_while_other_threads_use_nvtx(ranges, tell):
    assert ranges("fork_storm") == "bad 0\n"
    processes, _ = tell()
    assert len(processes) == 101
    assert all(p["bad_records"] == p["torn_blocks"] == 0 for p in processes)


def test_exec(ranges, tell):
    assert ranges("executes") == "ids 1 1 1\n"
    processes, traces = tell()
    names = [{e["name"] for e in rows(t)} for t in traces]
    assert len(processes) == 2
    assert any("across" in n and "before exec" not in n for n in names)


def test_signal_handlers(ranges, tell):
    assert ranges("signals") == "good 1\n"
    (process,), _ = tell()
    assert process["bad_records"] == process["torn_blocks"] == 0
    table = {r["name"]: r["count"] for r in process["ranges"]}
    assert table["outer"] == table["inner"] == table["started"] == 200_000
    assert table["in the handler"] > 0


def test_100000_levels(ranges, tell):
    assert ranges("deep") == "levels 1, then 1\n"
    (process,), (trace,) = tell()
    assert len(rows(trace, "deep")) == 1024
    assert ("ranges: 98976 pushed below 1,024 open ones of their thread were not recorded"
            in process["notices"])


def test_more_than_there_is_room_for(ranges, tell):
    assert ranges("many") == "bad 0\n"
    (process,), (trace,) = tell()
    names = [e["name"] for e in rows(trace)]
    # Names that found no room among the kept ones stand beside their ranges: none is missing.
    assert sum(n.startswith("unique ") for n in names) == len(
        {n for n in names if n.startswith("unique ")}) == 20_000
    assert sum(n == "open" for n in names) == 4096 and "last" in names
    domains = {e["args"]["domain"] for e in rows(trace, "in a domain")}
    assert len(rows(trace, "in a domain")) == 500 and len(domains) == 127 and "(other)" in domains
    said = " ".join(process["notices"])
    for part in ("5904 started while 4,096 were open", "times a domain beyond the 126 that fit",
                 "are shown as \"(other)\": the table of texts is full"):
        assert part in said, said


def test_ranges_across_the_edges_of_a_window(ranges, tell):
    ranges("windows", GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="3",
           GPUBUSY_WARMUP="1", GPUBUSY_ACTIVE="3")
    (process,), (trace,) = tell()
    assert trace["gpubusy"]["window"]["first_step"] == 4
    steps = [e for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")]
    begin = steps[0]["ts"]
    names = [e["name"] for e in rows(trace)]
    assert [n for n in names if n.startswith("step ")] == ["step 4", "step 5", "step 6"]
    # Opened before there was a recording, ended behind the window.
    for name in ("all", "started before"):
        (whole,) = rows(trace, name)
        assert whole["ts"] == begin
        assert whole["args"]["began before the window (us)"] > 0
        assert whole["args"]["ended behind the window (us)"] > 0
    across = rows(trace, "across the edge")
    assert len(across) == 4
    assert across[0]["ts"] == begin and "began before the window (us)" in across[0]["args"]
    assert "ended behind the window (us)" in across[3]["args"]
    table = {r["name"]: r for r in process["ranges"]}
    assert table["all"]["share"] == pytest.approx(1)
    assert table["across the edge"]["count"] == 4


def test_open_ranges_are_there_before_they_end(ranges, tell):
    """The trace that the process makes itself, at the end of the window, has them too."""
    ranges("ends_while_captured", GPUBUSY_CAPTURE_RANGE="cudaProfilerApi")
    (process,), (trace,) = tell()
    (capture,) = rows(trace, "capture")
    assert capture["args"] == {"still open": True}
    assert len(launches(trace)) == 7
    assert trace["gpubusy"]["window"]["kind"] == "captured"
    assert trace["gpubusy"]["window"]["complete"] is False


@pytest.mark.parametrize("pattern", ["loop:iteration ?*", "*iteration 1*", "loop:*"])
def test_steps_by_ranges(ranges, tell, pattern):
    ranges("steps", GPUBUSY_STEP=f"nvtx:{pattern}", GPUBUSY_WAIT="1", GPUBUSY_WARMUP="0",
           GPUBUSY_ACTIVE="2", GPUBUSY_REPEAT="1")
    (process,), (trace,) = tell()
    # 12 iterations in a domain; the second pattern matches 1, 10 and 11, as push/pop and start/end.
    expected = 6 if pattern.startswith("*") else 12
    assert process["steps_seen"] == expected
    assert process["step_source"] == "NVTX range"
    assert len(process["steps"]) == 2
    if expected == 12:
        assert len(launches(trace)) == 4
        assert len(rows(trace, "iteration 1")) == 2 and len(rows(trace, "forward")) == 2


@pytest.mark.parametrize("capture", ["cudaProfilerApi", "nvtx:capture*"])
def test_windows_by_the_programs_marks(ranges, tell, capture):
    """A Start while one runs, a Stop without one: as CUDA has it, they do nothing."""
    ranges("captures", GPUBUSY_CAPTURE_RANGE=capture, GPUBUSY_STEP="call:cudaDeviceSynchronize")
    (process,), traces = tell()
    assert process["windows"] == len(traces) == 2
    assert [t["gpubusy"]["window"]["kind"] for t in traces] == ["captured"] * 2
    assert all(t["gpubusy"]["window"]["complete"] for t in traces)
    assert [len(launches(t)) for t in traces] == [6, 5]
    assert [s["step"] for s in process["steps"]] == [2, 3, 5]
    assert process["steps_seen"] == 7
    assert [e["name"] for e in rows(traces[0])] == ["capture one", "capture inside"]
    assert [e["name"] for e in rows(traces[1])] == ["capture two"]


def test_windows_by_marks_without_steps(ranges, tell):
    ranges("captures", GPUBUSY_CAPTURE_RANGE="nvtx:capture two", GPUBUSY_STEP="none")
    (process,), (trace,) = tell()
    assert process["mode"] == "whole_span"
    assert len(launches(trace)) == 5


def test_program_that_never_reaches_the_range(ranges, tell):
    ranges("captures", GPUBUSY_CAPTURE_RANGE="nvtx:other")
    (process,), traces = tell()
    assert traces == [] and process["calls"] == 0
    assert ("GPUBUSY_CAPTURE_RANGE=nvtx:other: the program never reached it; nothing was recorded"
            in process["notices"])


def test_traces_of_captured_windows_while_the_program_runs(ranges, tmp_path):
    """Each pair is a window with a trace of its own, without the launcher too."""
    ranges("captures", GPUBUSY_CAPTURE_RANGE="cudaProfilerApi", GPUBUSY_EXPORT="1",
           GPUBUSY_STEP="none")
    for _ in range(100):
        traces = list((tmp_path / "out").glob("*.pt.trace.json.gz"))
        if len(traces) == 2:
            break
        subprocess.run(["sleep", "0.1"])
    assert len(traces) == 2


# ---- the launcher


def test_the_launcher_offers_the_library(gpubusy, nvtx, run, tell, tmp_path):
    result = run([gpubusy, "-o", tmp_path / "out", "--step", "none", "--no-export", "--", nvtx, "values"])
    assert (result.returncode, result.stdout) == (0, VALUES)
    assert "Ranges by time" in result.stderr
    assert "dömain:registered" in result.stderr
    _, (trace,) = tell()
    assert rows(trace, "innér")


def test_another_tool_wins(gpubusy, nvtx, run, run_preloaded, tell, tmp_path, clean_environment):
    """The path of a library that is no tool: NVTX then has none, as without us."""
    other = {"NVTX_INJECTION64_PATH": "libc.so.6"}
    plain = run([nvtx, "values"], env=other)
    assert "push -2" in plain.stdout
    result = run([gpubusy, "-o", tmp_path / "out", "--step", "none", "--no-export", "--", nvtx,
                  "values"], env=other)
    assert result.stdout == plain.stdout
    assert "NVTX_INJECTION64_PATH names another tool (libc.so.6)" in result.stderr
    hooked = run_preloaded([nvtx, "values"], output=tmp_path / "alone", GPUBUSY_STEP="none", **other)
    assert hooked.stdout.decode() == plain.stdout
    (process,), (trace,) = tell(tmp_path / "alone")
    assert rows(trace) == [] and len(launches(trace)) == 8
    assert any("names another tool" in n for n in process["notices"])


def test_the_variable_is_only_set_where_something_is_recorded(run_preloaded, library, tmp_path):
    show = ["/bin/sh", "-c", "echo $NVTX_INJECTION64_PATH"]
    assert run_preloaded(show, output=None).stdout == b"\n"
    assert run_preloaded(show).stdout.decode().strip() == os.path.realpath(library)
    ours = {"NVTX_INJECTION64_PATH": "/other"}
    assert run_preloaded(show, **ours).stdout == b"/other\n"


# ---- cuDNN and NCCL


def test_calls_of_libraries(programs, run_plain, run_preloaded, tell):
    program = programs / "ranges" / "libraries"
    plain = run_plain([program])
    assert plain.stdout.decode().splitlines()[2:4] == [
        "by name 1, missing 0 0", "of the library 1, missing 0, result 0"]
    hooked = run_preloaded([program], GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="1",
                           GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="1", GPUBUSY_DEVICE_TIME="off",
                           GPUBUSY_PRELUDE_SIZE="0")
    assert (hooked.stdout, hooked.stderr, hooked.returncode) == (
        plain.stdout, plain.stderr, plain.returncode)
    (process,), (trace,) = tell()
    names = [e["name"] for e in rows(trace)]
    # NCCL marks its call by NVTX as well: it is there once.
    assert names == ["cudnnBackendExecute"] * 4 + [
        "ncclGroupStart", "ncclAllReduce", "ncclSend", "ncclGroupEnd"]
    assert rows(trace, "ncclAllReduce")[0]["args"] == {"domain": "NCCL", "bytes": 4000}
    assert rows(trace, "ncclSend")[0]["args"] == {"domain": "NCCL", "bytes": 20}
    # What the library launches is recorded, inside its range.
    for call in rows(trace, "cudnnBackendExecute"):
        assert call["args"] == {"domain": "cuDNN"}
        assert sum(inside(c, call) for c in launches(trace)) == 1
    table = {r["name"]: r for r in process["ranges"]}
    assert table["ncclAllReduce"]["bytes"] == 4000 and table["ncclAllReduce"]["domain"] == "NCCL"


def test_functions_of_libraries_end_no_step(programs, run_preloaded):
    result = run_preloaded([programs / "ranges" / "libraries"], GPUBUSY_STEP="call:ncclAllReduce")
    assert b"is not a function whose calls are recorded" in result.stderr


def test_forwarders_of_a_library_find_its_parts(tmp_path, run_plain, run_preloaded):
    """libcudnn.so.9 has the names of its parts, finds theirs by dlsym and jumps there. Whoever came
    first, no hook may lead the forwarder back to itself."""
    sources = {
        "part": "int cudnnBackendFinalize(void* a) { return a == 0 ? 7 : 8; }",
        "shim": """
            #include <dlfcn.h>
            int cudnnBackendFinalize(void* a) {
              int (*f)(void*) = dlsym(dlopen("./libpart.so", RTLD_NOW), "cudnnBackendFinalize");
              return f(a);
            }""",
        "inner": "int cudnnBackendFinalize(void*); int inner(void) { return cudnnBackendFinalize(0); }",
        "user": "int cudnnBackendFinalize(void*); int user(void) { return cudnnBackendFinalize(0); }",
    }
    needs = {"inner": ["part"], "user": ["shim"]}
    for name, source in sources.items():
        (tmp_path / f"{name}.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", f"lib{name}.so", f"{name}.c", "-L.",
                        *(f"-l{n}" for n in needs.get(name, [])), "-Wl,-rpath,$ORIGIN"],
                       cwd=tmp_path, check=True)
    (tmp_path / "main.c").write_text("""
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        static int call(const char* library, const char* name) {
          void* f = dlsym(dlopen(library, RTLD_NOW), name);
          return ((int (*)(void*))f)(0);
        }
        int main(int argc, char** argv) {
          alarm(20);
          for (int i = 1; i + 1 < argc; i += 2) printf("%d\\n", call(argv[i], argv[i + 1]));
          return 0;
        }""")
    subprocess.run(["gcc", "-o", "main", "main.c"], cwd=tmp_path, check=True)
    f = "cudnnBackendFinalize"
    part, shim, inner, user = (str(tmp_path / f"lib{n}.so") for n in ("part", "shim", "inner", "user"))
    for order in ([part, f, shim, f], [shim, f, part, f], [inner, "inner", user, "user"],
                  [user, "user", inner, "inner"], [part, f, user, "user", shim, f],
                  [inner, "inner", shim, f, user, "user"]):
        command = ["sh", "-c", f'cd {tmp_path}; exec ./main "$@"', "sh", *order]
        plain, hooked = run_plain(command), run_preloaded(command)
        assert plain.returncode == 0 and set(plain.stdout.split()) == {b"7"}
        assert (hooked.returncode, hooked.stdout, hooked.stderr) == (0, plain.stdout, plain.stderr)
