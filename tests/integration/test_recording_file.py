# SPDX-License-Identifier: Apache-2.0
"""The recording's file and the exporter against what programs and systems do to them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest


def recordings(directory):
    return sorted(directory.glob("*.gpubusy")) if directory.exists() else []


def warnings(build_dir, directory):
    report = subprocess.run(
        [build_dir / "bin" / "gpubusy", "report", "--json", directory],
        capture_output=True, check=True, timeout=60,
    )
    report = json.loads(report.stdout)
    text = json.dumps(report)
    assert "counts and times are too low" in text
    return text


def same(plain, hooked):
    assert hooked.stdout == plain.stdout
    assert hooked.stderr == plain.stderr
    assert hooked.returncode == plain.returncode


def test_the_programs_files_are_not_written(programs, run_plain, run_preloaded, build_dir, tmp_path):
    """A3: descriptors are closed behind our back, and their numbers become the program's."""
    plain = run_plain([programs / "close_all"])
    assert plain.stdout == b"last 602 damaged 0 closed 0 closed in child 0\n"
    same(plain, run_preloaded([programs / "close_all"], GPUBUSY_STEP="none"))
    assert "closed the recording's descriptor" in warnings(build_dir, tmp_path / "out")


def test_limit_for_files(programs, run_preloaded, build_dir, tmp_path):
    """A4: SIGXFSZ would kill the program."""
    command = ["bash", "-c", 'ulimit -f 300; exec "$0" 20000', programs / "launch_many"]
    result = run_preloaded(command, GPUBUSY_STEP="none")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"launched 20000\n", b"")
    [recording] = recordings(tmp_path / "out")
    assert 100_000 < recording.stat().st_size <= 300 * 1024
    assert "ulimit -f" in warnings(build_dir, tmp_path / "out")


def test_limit_for_files_below_any_recording(programs, run_preloaded, tmp_path):
    command = ["bash", "-c", 'ulimit -f 2; exec "$0" 20000', programs / "launch_many"]
    result = run_preloaded(command, GPUBUSY_STEP="none")
    assert (result.returncode, result.stdout) == (0, b"launched 20000\n")
    assert result.stderr.count(b"\n") == 1 and b"File too large" in result.stderr
    assert not recordings(tmp_path / "out")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MB, of which `free` bytes are left when it is asked for."""
    directory = tmp_path / "disk"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", directory], capture_output=True
    )
    if made.returncode != 0:
        pytest.skip("needs the right to mount: " + made.stderr.decode(errors="replace").strip())
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


def free_bytes(directory):
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def test_full_disk(programs, run_preloaded, build_dir, small_disk):
    """R05: no bus error, the program goes on, what was recorded is there, some space is left."""
    result = run_preloaded(
        [programs / "launch_many", "60000"], output=small_disk / "out", GPUBUSY_STEP="none"
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, b"launched 60000\n", b"")
    [recording] = recordings(small_disk / "out")
    assert recording.stat().st_size > 700_000
    assert 16 * 1024 <= free_bytes(small_disk) < 200_000
    assert "no space left" in warnings(build_dir, small_disk / "out")


def test_disk_that_is_full_before(programs, run_preloaded, small_disk):
    (small_disk / "out").mkdir()
    (small_disk / "filler").write_bytes(bytes(free_bytes(small_disk) - 20 * 1024))
    result = run_preloaded(
        ["bash", "-c", '"$0" 100; "$0" 100', programs / "launch_many"],
        output=small_disk / "out", GPUBUSY_STEP="none",
    )
    assert (result.returncode, result.stdout) == (0, b"launched 100\n" * 2)
    assert result.stderr.count(b"No space left on device") == 2  # once for each process
    assert result.stderr.count(b"\n") == 2
    assert not recordings(small_disk / "out")


@pytest.mark.parametrize("limit", [256, 64, 12])
def test_few_descriptors(programs, run_preloaded, tmp_path, limit):
    """The descriptor is moved away from small numbers as far as the limit allows."""
    probe = (
        "import ctypes, os, resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))\n"
        "cuda = ctypes.CDLL(sys.argv[1])\n"
        "cuda.cudaLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0)\n"
        "links = {int(n): os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')\n"
        "         if os.path.exists(f'/proc/self/fd/{n}')}\n"
        "print([n for n, link in links.items() if link.endswith('.gpubusy')])\n"
    )
    toy = programs / "libgpubusy_test_toy_cuda.so"
    result = run_preloaded([sys.executable, "-c", probe, toy], GPUBUSY_STEP="none")
    assert result.returncode == 0 and result.stderr == b""
    [number] = json.loads(result.stdout)
    assert limit - 16 <= number < limit if limit > 32 else 3 <= number < limit


SHORT_WINDOWS = dict(
    GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="0", GPUBUSY_WARMUP="0",
    GPUBUSY_ACTIVE="1", GPUBUSY_REPEAT="10", GPUBUSY_EXPORT="1",
)


def test_handlers_stay_in_the_program(programs, run_preloaded):
    """A12: a handler in the exporter would run in the program's memory, in another process."""
    result = run_preloaded([programs / "signal_storm"], **SHORT_WINDOWS)
    assert (result.returncode, result.stdout) == (0, b"handlers elsewhere 0\n")


def test_exporter_unseen_by_a_subreaper(programs, run_plain, run_preloaded, tmp_path):
    """A13: orphans become children of a subreaper, also the exporter."""
    command = [programs / "export_unseen", "subreaper"]
    plain = run_plain(command)
    assert plain.stdout == b"eof 1 child -1 echild 1 sigchld 0 blocked 0\n"
    same(plain, run_preloaded(command, **SHORT_WINDOWS))


def test_exporter_unseen_by_process_1(programs, run_plain, run_preloaded, tmp_path):
    """A13: and of process 1, which a container's program often is."""
    command = ["unshare", "--fork", "--pid", programs / "export_unseen"]
    plain = run_plain(command)
    if plain.returncode != 0:
        pytest.skip("needs the right to make a PID name space")
    assert plain.stdout == b"eof 1 child -1 echild 1 sigchld 0 blocked 0\n"
    same(plain, run_preloaded(command, **SHORT_WINDOWS))


@pytest.fixture
def exporter(programs, tmp_path):
    """Runs Python code that starts exporters; a script that tells its state stands for them."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "bin").mkdir()
    library = tmp_path / "lib" / "libentry.so"
    shutil.copy(programs / "libgpubusy_test_export_entry.so", library)
    script = tmp_path / "bin" / "gpubusy"
    recording = tmp_path / "recording"
    recording.touch(mode=0o640)
    recording.chmod(0o640)
    (tmp_path / "seconds").write_text("0")

    def run(code, with_program=True, **environment):
        if with_program:
            script.write_text(
                f"#!{sys.executable} -IS\n"
                "import json, os, resource, signal, sys, time\n"
                "seen = dict(arguments=sys.argv[1:], umask=os.umask(0), directory=os.getcwd(),\n"
                "  processors=sorted(os.sched_getaffinity(0)), policy=os.sched_getscheduler(0),\n"
                "  nice=os.nice(0), core=resource.getrlimit(resource.RLIMIT_CORE)[0],\n"
                "  descriptors=[os.readlink(f'/proc/self/fd/{n}') for n in range(3)],\n"
                "  more=[n for n in range(3, 600) if os.path.exists(f'/proc/self/fd/{n}')],\n"
                "  blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),\n"
                "  handlers=[int(l.split()[1], 16) for l in open('/proc/self/status')\n"
                "            if l.startswith('SigIgn')])\n"
                f"open({str(tmp_path / 'seen.new')!r}, 'w').write(json.dumps(seen))\n"
                f"os.rename({str(tmp_path / 'seen.new')!r}, {str(tmp_path / 'seen')!r})\n"
                f"time.sleep(float(open({str(tmp_path / 'seconds')!r}).read()))\n"
            )
            script.chmod(0o755)
        before = (
            "import ctypes, os, signal, time\n"
            f"entry = ctypes.CDLL({str(library)!r})\n"
            "entry.start_windows.restype = ctypes.c_char_p\n"
            f"recording = {os.fsencode(recording)!r}\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", before + textwrap.dedent(code)], capture_output=True, timeout=60,
            text=True, env={**os.environ, "GPUBUSY_OUTPUT": str(tmp_path), **environment},
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    def seen():
        deadline = time.monotonic() + 20
        while not (tmp_path / "seen").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        return json.loads((tmp_path / "seen").read_text())

    run.seen = seen
    run.seconds = lambda n: (tmp_path / "seconds").write_text(str(n))
    run.recording = recording
    return run


def test_exporter_inherits_nothing(exporter):
    """Neither the program's binding, scheduler, umask, directory, mask, handlers, descriptors."""
    out = exporter(
        """
        r, w = os.pipe(); os.set_inheritable(w, True)
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        try: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError: pass
        os.umask(0o777)
        signal.signal(signal.SIGUSR1, lambda *a: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        chld = []; signal.signal(signal.SIGCHLD, chld.append)
        print(entry.start_windows(recording, 3, 17).decode())
        print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])) == [signal.SIGUSR2],
              signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, chld, os.umask(0) == 0o777)
        try: os.waitpid(-1, 0)
        except ChildProcessError: print("no child")
        """
    )
    assert out == "started\nTrue True [] True\nno child\n"
    seen = exporter.seen()
    assert seen["arguments"] == [
        "export", "--quiet", "--window", "3..17", "--", str(exporter.recording)
    ]
    assert seen["processors"] == sorted(os.sched_getaffinity(0))
    assert seen["policy"] == os.SCHED_OTHER and seen["nice"] == 19
    assert seen["umask"] == 0o027  # who may read the recording may read the trace
    assert seen["directory"] == "/"
    assert seen["descriptors"] == ["/dev/null"] * 3
    assert seen["core"] == 0 and seen["blocked"] == []
    assert len(seen["more"]) <= 1  # Python's own script
    ignored = seen["handlers"][0]
    assert ignored & 1 << signal.SIGXFSZ - 1 and not ignored & 1 << signal.SIGTERM - 1


def test_whether_the_last_exporter_runs(exporter):
    exporter.seconds(1)
    out = exporter(
        """
        print(entry.is_running(), entry.start_windows(recording, 4, 4).decode(), entry.is_running())
        if os.fork() == 0:
            print(entry.is_running(), flush=True)  # it is the parent's
            os._exit(0)
        os.wait()
        begin = time.monotonic()
        while entry.is_running() and time.monotonic() - begin < 20: time.sleep(0.01)
        print(time.monotonic() - begin > 0.5, entry.is_running())
        """
    )
    lines = sorted(out.splitlines())
    assert lines == ["0", "0 started 1", "True 0"]
    assert exporter.seen()["arguments"][3] == "4"


def test_why_no_exporter_was_started(exporter):
    start = "print(entry.start_windows(recording, 0, 0).decode())"
    assert "no gpubusy program" in exporter(start, with_program=False)
    assert "subreaper" in exporter(
        f"ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)\n{start}"  # PR_SET_CHILD_SUBREAPER
    )
    assert exporter(start) == "started\n"
    (exporter.recording.parent / "bin" / "gpubusy").write_bytes(b"\x7fELF no program")
    assert "refused" in exporter(start, with_program=False)
