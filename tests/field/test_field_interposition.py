# SPDX-License-Identifier: Apache-2.0
"""Field cases I01 to I15: what an injected library does to others' programs.

Each test runs its program without and with the launcher and compares all that can be seen from
outside. Cases whose tests are elsewhere: docs/field-cases.md.
"""

import ctypes.util
import json
import os
import platform
import re
import sys
import textwrap
import time

import pytest

from field_checks import calls_of, rows_of

PYTHON = sys.executable


def python(code, *arguments):
    return [PYTHON, "-c", textwrap.dedent(code), *arguments]


# ---- I01 -----------------------------------------------------------------------------------------


def test_i01_next_of_a_chain_within_a_second(both, programs):
    """A library that finds itself as its own next one spins for ever: 5 s are the case's limit, and
    one run of three must stay well below (the other two are the busy machine's)."""
    times = []
    for attempt in range(3):
        begin = time.monotonic()
        result = both([programs / "weak_next"], limit=5, out=f"out{attempt}")
        times.append(time.monotonic() - begin)
        assert result.plain.stdout.startswith(b"A B C ")
        assert result.plain.returncode == 7
    assert min(times) < 4


# ---- I02 -----------------------------------------------------------------------------------------


def test_i02_every_way_to_ask_for_an_entry_point(both, field, truth_logs):
    """3 versions x 3 flags x with and without a status = 18 combinations; in each cuMemAlloc is
    called by its own pointer and by one from the cuGetProcAddress that was handed out: 36."""
    result = both([field("proc_address_matrix")], "--step", "none", simulate=True)
    lines = result.plain.stdout.decode().splitlines()
    assert lines[-1] == "allocations 36 launches 18 unstable 0"
    assert len(lines) == 18 * 5 + 1
    bogus = [line.split(": ")[1] for line in lines if line.startswith("cuNoSuchFunction")]
    # CUDA_ERROR_NOT_FOUND, SYMBOL_NOT_FOUND where a status was asked for, and a null pointer.
    assert sorted(set(bogus)) == ["500 1 null", "500 77 null"]
    traces = result.out.traces()
    (trace,) = traces.values()
    seen = [e["name"] for e in rows_of(trace, "cuda_driver")]
    assert seen.count("cuMemAlloc") == 36
    assert seen.count("cuLaunchKernel") == 18
    for name in ("plain", "ours"):
        (log,) = truth_logs(name)
        assert sum(o.kind == "kernel" for o in log.operations) == 18


# ---- I03 -----------------------------------------------------------------------------------------


def test_i03_calls_that_nobody_can_see_are_no_empty_success(gpubusy, run, field, programs, tmp_path):
    """The driver is loaded and used, not one call passes us. Silence would look fine."""
    where = {"LD_LIBRARY_PATH": str(programs / "driver")}
    plain = run([field("unseen_calls")], env=where)
    assert plain.stdout == b"0\n" * 5
    ours = run([gpubusy, "-o", "out", "--report", "report.txt", field("unseen_calls")], env=where)
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    for text in (ours.stderr.decode(), (tmp_path / "report.txt").read_text()):
        assert text.startswith(
            "No CUDA call was intercepted, although libcuda.so.1 was loaded by pid ")
        assert "its calls go round the hooks" in " ".join(text.split())
    assert not list((tmp_path / "out").glob("*.json*"))


# ---- I04 -----------------------------------------------------------------------------------------


def test_i04_runtime_below_a_python_extension(both, programs):
    """A library loaded RTLD_LOCAL by Python, its CUDA runtime and a plug-in found by its run path."""
    code = """
        import ctypes, os, sys
        app = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        print(app.plugin_run())
    """
    plugin = programs / "local" / "libgpubusy_test_local_plugin.so"
    result = both(python(code, plugin), "--step", "none")
    assert result.plain.stdout == b"42\n"
    assert calls_of(result.out.process)["cudaLaunchKernel"] == 10  # local_plugin.cpp makes ten


# ---- I05 -----------------------------------------------------------------------------------------

CALLS = "import ctypes, sys; c = ctypes.CDLL(sys.argv[1]); c.cudaDeviceSynchronize(); print('done')"


def test_i05_shim_with_forty_helpers(gpubusy, run, toy_cuda, tmp_path, directory):
    """pyenv's `python` is a shell script that starts some 40 helpers before the real one."""
    helpers = ["/bin/true", "basename /a/b", "dirname /a/b", "cat /dev/null"] * 10
    shim = tmp_path / "shim"
    shim.write_text("#!/bin/sh\n" + "\n".join(f"{h} >/dev/null" for h in helpers) +
                    f'\nexec {PYTHON} "$@"\n')
    shim.chmod(0o755)
    command = [shim, "-c", CALLS, toy_cuda]
    plain = run(command)
    ours = run([gpubusy, "-o", "out", "--step", "none", *command])
    assert (plain.stdout, plain.returncode) == (b"done\n", 0)
    assert (ours.stdout, ours.returncode) == (plain.stdout, plain.returncode)
    # 40 helpers, and the shell that becomes Python.
    assert b"41 processes loaded the library, 1 recorded" in ours.stderr
    assert len(directory().recordings) == 1
    assert not [p for p in (tmp_path / "out").iterdir() if p.name.startswith(".")]


def test_i05_pipeline_into_tee(both, toy_cuda, tmp_path):
    """The pipeline's status is kept, the log is whole, and nobody waits for bash or tee."""
    code = CALLS + "; sys.stderr.write('warned\\n'); sys.exit(3)"
    script = f'set -o pipefail; {PYTHON} -c "$1" "$2" 2>&1 | tee log'
    begin = time.monotonic()
    result = both(["bash", "-c", script, "bash", code, toy_cuda], "--step", "none")
    assert time.monotonic() - begin < 10
    assert result.plain.returncode == 3
    assert result.plain.stdout == b"warned\ndone\n" or result.plain.stdout == b"done\nwarned\n"
    assert (tmp_path / "log").read_bytes() == result.ours.stdout
    assert len(result.out.recordings) == 1


def test_i05_start_of_a_helper(library, run, tmp_path):
    """Less than 1 ms more per helper, on a slow machine than the helper takes. By turns, and the
    fastest of five rounds: the rest is what else the machine did."""
    loop = ["sh", "-c", "i=0; while [ $i -lt 100 ]; do /bin/true; i=$((i+1)); done"]
    hooked = {"LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(tmp_path / "out")}
    seconds = {"plain": [], "hooked": []}
    for _ in range(5):
        for name, env in (("plain", None), ("hooked", hooked)):
            begin = time.monotonic()
            assert run(loop, env=env).returncode == 0
            seconds[name].append(time.monotonic() - begin)
    plain_ms, hooked_ms = (min(seconds[name]) * 1000 / 100 for name in ("plain", "hooked"))
    added_ms = hooked_ms - plain_ms
    print(f"added per helper: {added_ms:.3f} ms")
    assert added_ms < max(1, plain_ms)
    assert not (tmp_path / "out").exists()


# ---- I06 -----------------------------------------------------------------------------------------


def test_i06_children_of_all_kinds(both, tmp_path, toy_cuda, programs, i386_program, compile_c):
    """Shells, compilers, git, static and 32-bit programs, and children whose parent clears their
    environment: the same bytes and codes. One Python child calls CUDA and is followed."""
    static = compile_c("static", "int main(void){return 4;}", "-static")
    tiny = i386_program(5)
    children = [
        ["/bin/sh", "-c", "echo sh; exit 3"],
        ["bash", "-c", "echo $((6*7)); echo err >&2; exit 4"],
        ["dash", "-c", "echo dash | cat"],
        ["git", "--version"], ["gcc", "-v"], ["ssh", "-V"],
        ["no-such-program-at-all"],
        [static], [tiny],
        ["env", "-i", "/bin/sh", "-c", "echo clean; /bin/true; exit 6"],
        ["env", "-u", "LD_PRELOAD", "sh", "-c", "echo unset; exit 7"],
        [programs / "exit_ways", "abort"],
        [PYTHON, "-c", CALLS, toy_cuda],
    ]
    code = """
        import json, subprocess, sys
        children, out = json.loads(sys.argv[1]), []
        without = {"PATH": "/usr/bin:/bin"}
        for command in children:
            for env in (None, without):
                try:
                    r = subprocess.run(command, capture_output=True, env=env)
                    out.append([command, r.returncode, r.stdout.decode(), r.stderr.decode()])
                except OSError as error:
                    out.append([command, error.errno])
        print(json.dumps(out, indent=1))
    """
    command = python(code, json.dumps([[str(word) for word in c] for c in children]))
    result = both(command, "--step", "none")
    out = json.loads(result.plain.stdout)
    assert len(out) == 2 * len(children)
    codes = [row[1] for row in out[::2]]
    assert codes[:3] == [3, 4, 0] and codes[7] == 4 and codes[9:] == [6, 7, -6, 0]
    assert b"ERROR: ld.so" not in result.ours.stdout
    # Of the children with our preload two call CUDA: exit_ways, and the Python child.
    assert sorted(p["calls"] for p in result.out.processes) == [1, 1]
    assert [p["executable"] for p in result.out.processes].count(os.path.realpath(PYTHON)) == 1


@pytest.mark.parametrize("way", ["subprocess", "multiprocessing spawn", "execv"])
def test_i06_python_children_are_followed(both, toy_cuda, way):
    """As torchrun and DataLoader start their workers."""
    worker = "import ctypes; ctypes.CDLL({0!r}).cudaDeviceSynchronize()".format(str(toy_cuda))
    code = {
        "subprocess": "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])",
        "multiprocessing spawn": "import multiprocessing, sys\n"
                                 "if __name__ == '__main__':\n"
                                 "    c = multiprocessing.get_context('spawn')\n"
                                 "    p = c.Process(target=exec, args=(sys.argv[1],))\n"
                                 "    p.start(); p.join(); print(p.exitcode)",
        "execv": "import os, sys; os.execv(sys.executable, ['python', '-c', sys.argv[1]])",
    }[way]
    result = both(python(code, worker), "--step", "none")
    assert result.plain.returncode == 0
    assert result.out.process["calls"] == 1


TREE = """
import ctypes, multiprocessing, subprocess, sys
cuda = ctypes.CDLL(sys.argv[1])
def work():
    cuda.cudaDeviceSynchronize()
if __name__ == "__main__":
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), 8)
    for method in ("fork", "spawn"):
        p = multiprocessing.get_context(method).Process(target=work)
        p.start(); p.join(); print(method, p.exitcode, flush=True)
    print(subprocess.run([sys.argv[2], "return"]).returncode)
"""


@pytest.mark.parametrize("choice, recorded", [
    (None, 4), ("command", 1), ("name:python*", 3), ("name:exit_ways", 1), ("name:no*", 0),
])
def test_i06_which_children_are_recorded(both, toy_cuda, programs, tmp_path, choice, recorded):
    """Four processes call CUDA: the command, a forked and a spawned worker, another program."""
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    options = [] if choice is None else ["--processes", choice]
    # A shell that becomes the command: both are the same process.
    command = ["sh", "-c", 'exec "$0" "$@"', PYTHON, script, toy_cuda, programs / "exit_ways"]
    result = both(command, "--step", "none", *options)
    assert result.plain.stdout == b"fork 0\nspawn 0\n3\n"
    assert len(result.out.recordings) == recorded
    if choice == "command":
        assert result.out.process["calls"] == 1  # its cudaMalloc


def test_i06_no_command_without_the_launcher(run, library, field, tmp_path):
    result = run([field("steps"), 10, 1], env={
        "LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(tmp_path / "out"),
        "GPUBUSY_PROCESSES": "command"})
    assert (result.returncode, result.stdout) == (5, b"trained 10\n")
    assert b"needs the gpubusy launcher" in result.stderr and result.stderr.count(b"\n") == 1
    assert not (tmp_path / "out").exists()


# ---- I07 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case, code", [("child", 10), ("parent", 10), ("both", 20)])
def test_i07_cuda_and_fork(both, field, truth_logs, case, code):
    """Who calls CUDA is the program's choice: a call of ours before it, or in a child that makes
    none, changes what the driver allows. 10 and 20 are fork_and_cuda's codes: worked, refused."""
    result = both([field("fork_and_cuda"), case], "--step", "none", simulate=True)
    assert result.plain.returncode == code

    def made(name):
        logs = [log for log in truth_logs(name) if log.calls]
        return sorted([c.name for c in log.calls] for log in logs)

    plain, ours = made("plain"), made("ours")
    own = {name for process in plain for name in process}
    assert [[n for n in process if n in own] for process in ours] == plain
    for process in ours:
        assert process[0] == "cuInit", "no call of ours comes before the program's first"
    assert len(ours) == {"child": 1, "parent": 1, "both": 2}[case]


# ---- I08 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way, children", [("fork", 2000), ("vfork", 2000), ("spawn", 2000)])
def test_i08_children_under_fire(gpubusy, run, programs, directory, way, children):
    """2,000 of each, once and not 20 times: the tool's fault hung one fork in some hundred. A forked
    child calls CUDA ten times; one of vfork and posix_spawn becomes /bin/true."""
    result = run([gpubusy, "-q", "-o", "out", "--step", "none", "--no-export", "--max-size", "1G",
                  "--", programs / "fork_hammer", children, way], timeout=120)
    lines = result.stdout.decode().splitlines()
    assert lines[0].rsplit(" ", 2)[0] == f"children {children} bad 0"
    # Ends within 1 s each; a busy machine may hold up one in a thousand.
    assert int(lines[0].split()[-1]) <= children // 1000
    assert (result.returncode, result.stderr) == (0, b"")
    launches = int(lines[1].split()[1])
    processes = directory().processes
    # Each child's recording holds its own ten launches and nothing of the parent's; /bin/true has
    # none. The parent has all of its own, each of them counted or said to be lost.
    children_seen = [p for p in processes if calls_of(p)["cudaLaunchKernel"] == 10]
    (parent,) = [p for p in processes if calls_of(p)["cudaLaunchKernel"] != 10]
    assert len(children_seen) == (children if way == "fork" else 0)
    assert all(p["lost_records"] == p["bad_records"] == p["torn_blocks"] == 0 for p in children_seen)
    assert calls_of(parent)["cudaLaunchKernel"] + parent["lost_records"] == launches
    assert parent["bad_records"] == parent["torn_blocks"] == 0


# ---- I09 -----------------------------------------------------------------------------------------

WORKERS = """
import ctypes, json, multiprocessing, os, signal, sys, time

def work(toy, end, ready):
    cuda = ctypes.CDLL(toy)
    memory = ctypes.c_void_p()
    for number in range(1, 101):
        cuda.cudaMalloc(ctypes.byref(memory), number)
    ready.send(os.getpid())
    if end == "return":
        return
    if end == "os._exit":
        os._exit(7)
    number = 100
    while True:
        if end == "SIGKILL while writing":
            number += 1
            cuda.cudaMalloc(ctypes.byref(memory), number)
        else:
            time.sleep(1)

if __name__ == "__main__":
    pids = {}
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        for end in ("return", "os._exit", "terminate", "kill", "SIGKILL while writing"):
            mine, theirs = context.Pipe()
            process = context.Process(target=work, args=(sys.argv[1], end, theirs))
            process.start()
            pids[mine.recv()] = [method, end]
            if end == "terminate":
                process.terminate()
            elif end == "kill":
                process.kill()
            elif end.startswith("SIGKILL"):
                time.sleep(0.05)
                os.kill(process.pid, signal.SIGKILL)
            process.join()
            print(method, end, process.exitcode, flush=True)
    open(sys.argv[2], "w").write(json.dumps(pids))
"""


def test_i09_every_start_and_every_end_of_a_worker(both, toy_cuda, tmp_path):
    """15 kinds of workers, 100 numbered calls each (cudaMalloc of 1 to 100 bytes): all are there,
    whatever became of the process."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    result = both([PYTHON, script, toy_cuda, tmp_path / "pids"], "--step", "none", timeout=120)
    codes = [line.rsplit(" ", 1)[1] for line in result.plain.stdout.decode().splitlines()]
    assert codes == ["0", "7", "-15", "-9", "-9"] * 3
    pids = {int(pid): kind for pid, kind in json.loads((tmp_path / "pids").read_text()).items()}
    traces = {t["gpubusy"]["process id"]: t for t in result.out.traces().values()}
    reports = {p["pid"]: p for p in result.out.processes}
    assert set(traces) == set(reports) == set(pids)
    for pid, (method, end) in pids.items():
        numbers = [e["args"]["bytes"] for e in rows_of(traces[pid], "cuda_runtime")]
        assert numbers == list(range(1, len(numbers) + 1)), (method, end)
        assert len(numbers) == 100 if end != "SIGKILL while writing" else len(numbers) > 100
        # Exit handlers run in workers that were spawned and return, in no other: the report says
        # which of the two it was.
        orderly = method == "spawn" and end == "return"
        assert reports[pid]["state"] == ("finished" if orderly else "open"), (method, end)
        assert any("_exit" in w for w in reports[pid]["warnings"]) != orderly
        assert reports[pid]["bad_records"] == 0


# ---- I10 -----------------------------------------------------------------------------------------


@pytest.fixture
def native_stacks(build_dir, run):
    """The native stack of each call of a recording: addresses, innermost first, "..." where it was cut."""
    def native_stacks(out):
        if platform.machine() != "x86_64":
            pytest.skip("native stacks need x86-64")
        (recording,) = out.recordings
        dump = run([build_dir / "bin" / "gpubusy_stack_dump", recording])
        assert dump.returncode == 0
        return [line.split() for line in dump.stdout.decode().splitlines()]

    return native_stacks


def test_i10_loader_allocator_and_exceptions_at_once(both, field, programs, native_stacks):
    """The case runs 60 s; 3 s are some thousand loads of the plug-in, each call of the five threads with
    its native stack. Two threads' locks taken in both orders hang at once."""
    plugin = programs / "libgpubusy_test_field_allocates.so"
    result = both([field("loader_and_malloc"), "3", plugin], "--step", "none", "--max-size", "256M",
                  "--no-export", limit=40)
    assert result.plain.stdout == b"1 1 1 1 1 end\n"  # each thread came round more than 100 times
    assert calls_of(result.out.process)["cudaLaunchKernel"] > 500
    stacks = native_stacks(result.out)
    # Code that is not known yet cannot be walked while another thread is inside dlclose().
    assert sum(map(bool, stacks)) >= 0.8 * len(stacks)
    assert len({len(stack) for stack in stacks}) > 1


def test_i10_hooks_call_neither_loader_nor_allocator(run, library, field, directory, tmp_path,
                                                     native_stacks):
    """With native stacks, 20,000 launches and synchronisations in a window turn the thread's block over some forty times,
    behind 100 for the start: no malloc, free, dl_iterate_phdr, dladdr, dlopen or mutex among them."""
    env = {"LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(tmp_path / "out"),
           "GPUBUSY_STEP": "none", "GPUBUSY_EXPORT": "0"}
    plain = run([field("quiet_hooks"), "20000"])
    hooked = run([field("quiet_hooks"), "20000"], env=env)
    zero = b"malloc 0 free 0 dl_iterate_phdr 0 dladdr 0 dlopen 0 mutex 0\n"
    assert plain.stdout == zero
    assert hooked.stdout == zero
    assert directory().process["calls"] == 2 * 20_100 + 1
    assert all(native_stacks(directory()))


# ---- I12 -----------------------------------------------------------------------------------------


def test_i12_program_that_takes_eintr_for_a_failure(both, field):
    """Waits in poll, recv, nanosleep and a futex while another thread is recorded: no signal of ours
    interrupts them, no handler, timer or pending signal is left."""
    result = both([field("no_signals"), "eintr"], "--step", "none", "--max-size", "16M",
                  "--no-export")
    assert result.plain.stdout.splitlines()[-1] == b"timers 0"
    assert b"EINTR" not in result.plain.stdout


def test_i12_waits_that_are_looked_at(both, field):
    """The same waits in the launching thread itself, which the helper thread looks at meanwhile."""
    result = both([field("no_signals"), "eintr", "watched"], "--step", "none", "--no-export")
    assert result.plain.stdout.splitlines()[-1] == b"timers 0"
    assert b"EINTR" not in result.plain.stdout
    assert result.out.process["host_in_gaps"]["looks"] > 20


FORKED = """
import ctypes, os, sys, threading, time
cuda = ctypes.CDLL(sys.argv[1])
def work(seconds):
    for _ in range(10):
        cuda.cudaLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0)
        end = time.thread_time() + seconds
        while time.thread_time() < end: pass  # burns
def idle():
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
idle()
work(0.02)
if os.fork() == 0:
    idle()
    work(0.05)
    os._exit(3)
print(os.wait()[1] >> 8, flush=True)
os._exit(0)
"""


def test_i12_a_forked_worker_is_looked_at_again(both, toy_cuda, tmp_path):
    script = tmp_path / "forked.py"
    script.write_text(FORKED)
    result = both([PYTHON, script, toy_cuda], "--step", "none", "--no-export")
    assert result.plain.stdout == b"3\n"
    parent, child = sorted(result.out.processes, key=lambda p: p["pid"])
    assert child["parent_pid"] == parent["pid"]
    for process in (parent, child):
        # Of a thread that runs on while it is read the inner frames may be missing.
        looks = [row["looks"] for row in process["host_in_gaps"]["rows"]
                 if row["line"] and row["line"]["file"] == str(script)]
        assert sum(looks) >= 5, process["host_in_gaps"]


def test_i12_fork_and_exec(gpubusy, run, field):
    """A timer that survives exec kills /bin/true."""
    command = [gpubusy, "-q", "-o", "out", "--step", "none", "--", field("no_signals"), "exec"]
    result = run([*command, 10000, 1], timeout=120)
    assert result.stdout.startswith(b"bad 0 of 10000\n") and result.stdout.endswith(b"timers 0\n")
    assert (result.returncode, result.stderr) == (0, b"")


def test_i12_fork_of_a_large_process(gpubusy, run, field):
    """The case touches 8 GB, of which the copying of page tables is what counts: 1 GiB here."""
    command = [gpubusy, "-q", "-o", "out", "--step", "none", "--", field("no_signals"), "exec"]
    result = run([*command, 30, 1024], timeout=60)
    assert result.stdout.startswith(b"bad 0 of 30\n") and result.stdout.endswith(b"timers 0\n")
    assert (result.returncode, result.stderr) == (0, b"")


# ---- I13 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("thread", ["main", "thread"])
def test_i13_exit_inside_the_loader(both, field, programs, thread):
    """A constructor calls exit(1) while dlopen holds the loader's lock: ends at once, with 1."""
    library = programs / "libgpubusy_test_field_exits.so"
    begin = time.monotonic()
    result = both([field("exit_in_loader"), thread, library], "--step", "none", limit=20)
    assert time.monotonic() - begin < 15  # one that hangs takes 20
    assert (result.plain.returncode, result.plain.stdout) == (1, b"loading\n")
    assert result.out.process["state"] == "finished"
    assert result.out.process["calls"] == 1


def test_i13_calls_after_the_runtime_is_gone(both, field):
    """4: cudaErrorCudartUnloading, which the program gets natively as well."""
    result = both([field("late_free")], "--step", "none")
    assert result.plain.stdout == b"main 0\nstatic 4\nlate 4 4\n"
    assert result.plain.returncode == 6
    assert result.out.process["state"] == "finished"


# ---- I14 -----------------------------------------------------------------------------------------


def jemalloc():
    for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"):
        if os.path.exists(f"{folder}/libjemalloc.so.2"):
            return f"{folder}/libjemalloc.so.2"
    return ctypes.util.find_library("jemalloc")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_i14_the_users_own_preloads_stay_in_order(both, field, programs, order):
    """Whichever marker comes first in the user's LD_PRELOAD answers."""
    preload = ":".join(str(programs / f"libgpubusy_test_field_marker_{n}.so") for n in order)
    result = both([field("marker")], "--step", "none", env={"LD_PRELOAD": preload})
    assert result.plain.stdout == f"marker {order[0]}\n".encode()
    assert result.out.process["calls"] == 1


def test_i14_jemalloc_and_a_library_of_the_user(both, field, programs):
    found = jemalloc()
    if found is None:
        pytest.skip("libjemalloc2 is not installed")
    preload = f"{found}:{programs / 'libgpubusy_test_field_marker_1.so'}"
    result = both([field("marker")], "--step", "none", env={"LD_PRELOAD": preload})
    assert result.plain.stdout == b"marker 1\njemalloc 1\n"
    assert result.out.process["calls"] == 1


def test_i14_libraries_that_need_static_tls(both, field, programs):
    """glibc has 1,664 bytes of static TLS to spare for libraries loaded later. 3 x 420 leave 404;
    a profiler that is loaded late or takes more makes the third fail."""
    libraries = [programs / f"libgpubusy_test_field_tls_{n}.so" for n in (1, 2, 3)]
    result = both([field("marker"), *libraries], "--step", "none")
    assert result.plain.stdout == b"marker 0\n" + b"tls 421\n" * 3  # t_room[0] + its size
    assert result.plain.returncode == 0
    assert result.out.process["calls"] == 1


# ---- I15 -----------------------------------------------------------------------------------------

ODD_FRAMES = """
import ctypes, sys
odd = ctypes.CDLL(sys.argv[1])
def innermost(name):
    return getattr(odd, name)(50)
def outermost(name):
    return innermost(name)
for name in ("garbage_frame_pointer", "frame_pointer_cycle", "alternate_stack", "small_stack"):
    print(name, outermost(name))
"""


def test_i15_frames_that_cannot_be_walked(both, programs, tmp_path, native_stacks):
    """Generated code, a cycle of frame pointers, an alternate signal stack, the end of a small
    stack. 50 calls each; those that Python made carry Python's lines in spite of what is above. Native
    stacks end, and say so, at the code that has no table, with its address."""
    script = tmp_path / "odd.py"
    script.write_text(ODD_FRAMES)
    library = programs / "libgpubusy_test_field_odd_frames.so"
    result = both([PYTHON, script, library], "--step", "none")
    assert result.plain.stdout == (
        b"garbage_frame_pointer 50\nframe_pointer_cycle 50\nalternate_stack 50\nsmall_stack 50\n")
    (trace,) = result.out.traces().values()
    rows = [e for e in rows_of(trace, "cuda_runtime") if e["name"] == "cudaLaunchKernel"]
    assert len(rows) == 200
    stacks = [e["args"].get("Call stack", "") for e in sorted(rows, key=lambda e: e["ts"])]
    for stack in stacks[:150]:
        assert re.search(r"odd\.py\(5\): innermost;.*odd\.py\(7\): outermost;.*odd\.py\(9\)", stack)
    assert stacks[150:] == [""] * 50  # a thread without Python
    native = native_stacks(result.out)
    for stack in native[:100]:  # the launch, the generated code, and no further
        assert len(stack) == 3 and stack[2] == "..."
    assert {stack[1] for stack in native[:50]} != {stack[1] for stack in native[50:100]}
    assert all(10 < len(stack) and stack[-1] != "..." for stack in native[100:150])
    assert all(20 < len(stack) <= 1025 for stack in native[150:])
    shown = [e["args"]["Native stack"] for e in sorted(rows, key=lambda e: e["ts"])]
    assert all(re.fullmatch(r"gpubusy_test_launch[^;]*;0x[0-9a-f]+;\.\.\.", s) for s in shown[:100])
