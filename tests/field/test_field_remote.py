# SPDX-License-Identifier: Apache-2.0
"""Field cases R01 to R13: clusters, containers and notebooks. Cases whose tests are elsewhere:
docs/field-cases.md."""

import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from field_checks import calls_of, rows_of

PYTHON = sys.executable
STEP = ["--step", "call:cudaDeviceSynchronize"]


def python(code, *arguments):
    return [PYTHON, "-c", textwrap.dedent(code), *arguments]


# ---- R01 -----------------------------------------------------------------------------------------

# ptrace, process_vm_readv and perf_event_open answer EPERM, and the user is nobody, as in a container.
CONFINED = """
import ctypes, os, platform, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
ptrace, readv, perf = {"x86_64": (101, 310, 298), "aarch64": (117, 270, 241)}[platform.machine()]
rules = [(0x20, 0, 0, 0), (0x15, 2, 0, ptrace), (0x15, 1, 0, readv), (0x15, 0, 1, perf),
         (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *r) for r in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
if os.getuid() == 0:
    libc.unshare(0x10000000)  # a name space of users that has none: no rights are left
if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, program, 0, 0) != 0:
    sys.exit(77)
os.execv(sys.argv[1], sys.argv[1:])
"""

STACKS = """
import ctypes, sys, threading, time
cuda = ctypes.CDLL(sys.argv[1])
one = ctypes.c_void_p(1)
def innermost():
    return cuda.cudaLaunchKernel(one, 1, 1, 1, 1, 1, 1, 0, 0, 0)
def outermost():
    time.sleep(0.05)
    return innermost()
threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
for _ in range(10):
    outermost()
try:
    open("/proc/self/mem", "rb")
finally:
    print("end", flush=True)
"""


def test_r01_without_the_right_to_look_at_processes(gpubusy, run, toy_cuda, directory, tmp_path):
    """Stacks are taken by the process itself: Python lines and native frames are there all the same. What
    needs the forbidden call (the Python line of a gap) is left out and named, once."""
    script = tmp_path / "stacks.py"
    script.write_text(STACKS)
    confined = [PYTHON, "-c", CONFINED]
    plain = run([*confined, PYTHON, script, toy_cuda])
    if plain.returncode == 77:
        pytest.skip("seccomp filters are not allowed here")
    ours = run([*confined, gpubusy, "-o", tmp_path / "out", "--step", "none", "--", PYTHON, script,
                toy_cuda])
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout) == (0, b"end\n")
    (trace,) = directory().traces().values()
    launches = [e for e in rows_of(trace, "cuda_runtime") if e["name"] == "cudaLaunchKernel"]
    assert len(launches) == 10
    for launch in launches:
        assert re.search(r"stacks\.py\(6\): innermost;.*stacks\.py\(9\): outermost;.*"
                         r"stacks\.py\(12\)", launch["args"]["Call stack"])
        if os.uname().machine == "x86_64":
            assert "libpython" in launch["args"]["Call stack"] or "ffi" in json.dumps(launch["args"])
    process = directory().process
    said = [n for n in process["notices"] if "process_vm_readv" in n]
    assert len(said) == 1 and process["host_in_gaps"]["looks"] > 0, process["notices"]
    text = (ours.stderr.decode() + directory().text()).lower()
    assert not re.search(r"\bsudo\b|\bas root\b|cap_sys_ptrace|--privileged", text)


# ---- R03 -----------------------------------------------------------------------------------------


def test_r03_an_old_libstdcxx_first_in_the_path(run, gpubusy, field, directory, compile_c, tmp_path):
    """As conda's, in front of LD_LIBRARY_PATH: older than what the launcher was built with. Neither the
    library nor the launcher may meet it."""
    old = tmp_path / "conda"
    old.mkdir()
    for name in ("libstdc++.so.6", "libfmt.so.9", "libgcc_s.so.1"):
        library = compile_c(f"old-{name}", "int gpubusy_test_old;", "-shared", "-fPIC",
                            f"-Wl,-soname,{name}")
        os.rename(library, old / name)
    env = {"LD_LIBRARY_PATH": str(old)}
    ours = run([gpubusy, "-o", "out", *STEP, "--wait", "0", "--warmup", "0", "--active", "2", "--",
                "/bin/sh", "-c", 'LD_LIBRARY_PATH= exec "$@"', "sh", field("steps"), 5, 3], env=env)
    assert (ours.returncode, ours.stdout) == (5, b"trained 5\n"), ours.stderr
    assert calls_of(directory().process)["cudaLaunchKernel"] == 2 * 3
    report = run([gpubusy, "report", "out"], env=env)
    assert report.returncode == 0 and b"GLIBCXX" not in report.stderr


def test_r03_the_glibc_that_is_needed_is_the_one_that_is_told(run, gpubusy, library):
    """The floor is that of the machine that built it, and `gpubusy doctor` says which."""
    symbols = subprocess.run(["readelf", "-V", "-W", library], check=True, capture_output=True,
                             text=True).stdout
    needed = max((int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols))
    assert not re.search(r"GLIBCXX_|CXXABI_|GCC_", symbols)
    doctor = json.loads(run([gpubusy, "doctor", "--json"]).stdout)
    (glibc,) = [c for c in doctor["checks"] if c["id"] == "glibc"]
    assert f"the library needs {needed[0]}.{needed[1]}" in glibc["found"]


# ---- R04 -----------------------------------------------------------------------------------------

REPEATS, ACTIVE = 20, 20
# How the job is ended, what the program does about it, and how it ends then.
ENDS = {
    "terminated": ("default", signal.SIGTERM, -signal.SIGTERM, b""),
    "killed": ("default", signal.SIGKILL, -signal.SIGKILL, b""),
    "handles": ("handler", signal.SIGTERM, 3, b"saved\n"),
    "ignores": ("ignore", signal.SIGTERM, -signal.SIGKILL, b""),
    "interrupted": ("default", signal.SIGINT, -signal.SIGINT, b""),
}


@pytest.mark.parametrize("name", ENDS)
def test_r04_a_job_that_is_ended(gpubusy, field, directory, clean_environment, tmp_path, name):
    """The signal goes to the whole group at a random moment, SIGKILL follows after 2 s: 20 runs side by
    side. Windows that had ended are whole, the one in hand is there as far as it came, and the launcher
    ends as the program does, without a wait of its own."""
    mode, number, code, said = ENDS[name]
    moments = random.Random(name)
    runs = []
    for _ in range(REPEATS):
        command = [gpubusy, "-q", "-o", tmp_path / "out", *STEP, "--no-export", "--wait", "0",
                   "--warmup", "0", "--active", ACTIVE, "--repeat", "0", "--", field("ends_by_signal"),
                   mode]
        runs.append(subprocess.Popen([str(word) for word in command], env=clean_environment,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, start_new_session=True))
    deadline = time.monotonic() + 60
    while len(directory().recordings) < REPEATS and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.5)
    order = sorted((moments.uniform(0, 1), i) for i in range(REPEATS))
    begin, ended = time.monotonic(), {}
    for moment, i in order:
        time.sleep(max(0, begin + moment - time.monotonic()))
        os.killpg(runs[i].pid, number)
    kill_at = time.monotonic() + 2
    results = {}
    for _, i in order:
        try:
            results[i] = runs[i].communicate(timeout=max(0.01, kill_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(runs[i].pid, signal.SIGKILL)
            results[i] = runs[i].communicate(timeout=20)
        ended[i] = time.monotonic()
    for i in range(REPEATS):
        assert (runs[i].returncode, results[i][0]) == (code, said), (i, results[i])
    processes = directory().processes
    assert len(processes) == REPEATS
    for process in processes:
        assert process["bad_records"] == process["torn_blocks"] == process["lost_records"] == 0
        seen, steps = process["steps_seen"], [s["step"] for s in process["steps"]]
        # Whole windows, and of the one in hand all but the step that was not ended.
        assert steps == list(range(len(steps))) and seen - len(steps) in (-1, 0, 1)
        assert 0 <= calls_of(process)["cudaLaunchKernel"] - 3 * seen <= 3
        whole = process["windows"] - process["cut_windows"]
        assert seen // ACTIVE - 1 <= whole <= seen // ACTIVE, (seen, whole)
    if name != "ignores":
        assert all(ended[i] < kill_at + 0.5 for i in ended), "somebody had to be killed"


# ---- R05 -----------------------------------------------------------------------------------------

FILLS = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
disk = sys.argv[2]
memory = ctypes.c_void_p()
def hammer():
    for _ in range(20_000):
        cuda.cudaMalloc(ctypes.byref(memory), 8)
hammer()
os.unlink(disk + "/filler")
hammer()
ours = [line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm" in line]
print("trained", ours, os.listdir("/dev/shm"))
"""


def test_r05_a_full_disk_and_hardly_any_shared_memory(library, run, toy_cuda, directory, tmp_path):
    """1 MB for everything, of which half is taken and given back in the middle: no bus error, nothing of
    ours in /dev/shm; recording ends for good and says why, once. (The launcher would not begin there.)"""
    (tmp_path / "disk").mkdir()
    script = tmp_path / "fills.py"
    script.write_text(FILLS)
    mounts = ("mount -t tmpfs -o size=1m tmpfs /dev/shm && mount -t tmpfs -o size=1m tmpfs disk && "
              'head -c 500000 /dev/zero > disk/filler && export TMPDIR=$PWD/disk && "$@"; code=$?; '
              "cp -r disk/out . 2>/dev/null; exit $code")
    confined = ["unshare", "--mount", "sh", "-c", mounts, "sh"]
    plain = run([*confined, PYTHON, script, toy_cuda, tmp_path / "disk"])
    if plain.returncode != 0:
        pytest.skip("needs the right to mount: " + plain.stderr.decode())
    hooked = ["env", f"LD_PRELOAD={library}", f"GPUBUSY_OUTPUT={tmp_path / 'disk' / 'out'}",
              "GPUBUSY_STEP=none", "GPUBUSY_EXPORT=0"]
    ours = run([*confined, *hooked, PYTHON, script, toy_cuda, tmp_path / "disk"])
    assert (ours.returncode, ours.stdout) == (0, plain.stdout) == (0, b"trained [] []\n")
    process = directory().process
    (said,) = [w for w in process["warnings"] if "no space left" in w]
    assert "Recording stopped early" in said
    assert 0 < process["calls"] < 20_000, "it did not begin again"
    assert ours.stderr == b""


# ---- R06 -----------------------------------------------------------------------------------------


def interpreters():
    root = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    found = {os.path.realpath(PYTHON)}
    for pattern in (root + "/versions/*/bin/python3", "/usr/bin/python3"):
        found |= {os.path.realpath(path) for path in glob.glob(pattern)}
    return sorted(found)


@pytest.mark.parametrize("interpreter", interpreters(), ids=lambda p: "-".join(Path(p).parts[-3:]))
def test_r06_names_and_lines_or_none(gpubusy, run, toy_cuda, tmp_path, directory, interpreter):
    """Each interpreter that is installed: its own names and lines where it is known, else none and a notice.
    One that says that it is 3.99, and free-threaded ones: tests/python."""
    version = run([interpreter, "-c", "import sys; print('%d %d %d' % (*sys.version_info[:2], "
                   "not getattr(sys, '_is_gil_enabled', lambda: True)()))"]).stdout.split()
    major, minor, free = (int(word) for word in version)
    script = tmp_path / "sample.py"
    script.write_text(STACKS)
    result = run([gpubusy, "-q", "-o", "out", "--step", "none", "--", interpreter, script, toy_cuda])
    assert (result.returncode, result.stdout) == (0, b"end\n"), result.stderr
    (trace,) = directory().traces().values()
    stacks = [e["args"].get("Call stack", "") for e in rows_of(trace, "cuda_runtime")
              if e["name"] == "cudaLaunchKernel"]
    assert len(stacks) == 10
    if (3, 8) <= (major, minor) <= (3, 14) and not free:
        for stack in stacks:
            assert re.search(r"sample\.py\(6\): innermost;.*sample\.py\(9\): outermost;.*"
                             r"sample\.py\(12\)", stack), stack
    else:
        assert not any("sample.py" in stack for stack in stacks)
        assert any("Python" in notice for notice in directory().process["notices"])


# ---- R13 -----------------------------------------------------------------------------------------

CELLS = """
import ctypes, signal, sys, threading
cuda = ctypes.CDLL(sys.argv[1])
launch = lambda n: [cuda.cudaLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0) for _ in range(n)]
start, stop = cuda.cudaProfilerStart, cuda.cudaProfilerStop
stop()
launch(1)
for n in range(1, 6):
    a = start(), launch(10 + n), stop()

def at_once(what):
    threads = [threading.Thread(target=what) for _ in range(2)]
    for t in threads: t.start()
    for t in threads: t.join()

a = start(), launch(21)
at_once(stop)
stop()
start()
launch(31)
signal.raise_signal(signal.SIGINT)
launch(1)
start()
stop()
for again in range(2):
    a = start(), launch(41)

stop()
launch(1)
print(sum(range(10)))
"""


def test_r13_an_interactive_session(both, toy_cuda, tmp_path):
    """Cells typed into an interpreter: five windows; a Stop without a Start; two Stops at once; an
    interrupt in a window, which shows its own traceback alone; a cell that is run again while its window
    is open. Every window is a file of its own with its launches, and no cell hears of it."""
    cells = tmp_path / "cells"
    cells.write_text(CELLS)
    command = ["bash", "-c", f'{PYTHON} -i -q - "$1" < "$2" 2>&1', "bash", toy_cuda, cells]
    result = both(command, "--capture-range", "cudaProfilerApi", "--step", "none")
    text = result.plain.stdout.decode()
    assert text.count("KeyboardInterrupt") == 1 and text.count("Traceback") == 1 and "45" in text
    traces = sorted(result.out.traces().values(),
                    key=lambda t: min(e["ts"] for e in rows_of(t, "cuda_runtime")) +
                    t["baseTimeNanoseconds"] / 1000)
    launches = [sum(e["name"] == "cudaLaunchKernel" for e in rows_of(t, "cuda_runtime"))
                for t in traces]
    assert launches == [11, 12, 13, 14, 15, 21, 32, 82]
    assert all(t["gpubusy"]["window"]["complete"] for t in traces)
    process = result.out.process
    assert process["windows"] == 8 and process["lost_records"] == 0
