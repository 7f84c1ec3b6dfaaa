# SPDX-License-Identifier: Apache-2.0
"""The launcher's first law: the program behaves as without us."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest


def recordings(directory):
    return sorted(p.name for p in directory.rglob("*.gpubusy"))


# ---- how it ends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 3, 7, 124, 125, 126, 127, 128, 255])
def test_exit_code_is_the_programs(gpubusy, run, code):
    assert run([gpubusy, "sh", "-c", f"exit {code}"]).returncode == code


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "ABRT", "HUP", "INT", "USR1", "PIPE"])
def test_ends_by_the_programs_signal(gpubusy, run, tmp_path, name):
    result = run([gpubusy, "sh", "-c", f"kill -{name} $$"])
    assert result.returncode == -getattr(signal, f"SIG{name}")
    assert not list(tmp_path.glob("core*"))


def test_program_that_cannot_run(gpubusy, run, tmp_path):
    (tmp_path / "plain").write_text("no program")
    result = run([gpubusy, "-o", "out", "./plain"])
    assert (result.returncode, result.stderr) == (
        126,
        "gpubusy: cannot run './plain': Permission denied\n",
    )
    result = run([gpubusy, "no-such-program"])
    assert (result.returncode, result.stderr) == (
        127,
        "gpubusy: cannot run 'no-such-program': No such file or directory\n",
    )
    assert [p.name for p in tmp_path.iterdir()] == ["plain"]


def test_options_end_at_the_program(gpubusy, run):
    assert run([gpubusy, "-q", "echo", "--wait", "-1", "-o"]).stdout == "--wait -1 -o\n"
    assert run([gpubusy, "--", "echo", "x"]).stdout == "x\n"
    echo = ["sh", "-c", 'echo "$@"', "sh"]
    assert run([gpubusy, "--wait=3", "--active", "2", *echo, "--help"]).stdout == "--help\n"


# ---- signals -------------------------------------------------------------------------------------

# Prints a line for each signal it gets; ends by itself or by SIGALRM.
COUNTER = """
import os, signal, sys
def got(number, frame):
    os.write(1, f"{signal.Signals(number).name}\\n".encode())
for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGCONT", "SIGWINCH"):
    signal.signal(getattr(signal, name), got)
os.write(1, f"ready {os.getpid()}\\n".encode())
seconds = float(sys.argv[1])
import time
end = time.monotonic() + seconds
while time.monotonic() < end:
    time.sleep(0.02)
sys.exit(9)
"""


def start_counter(gpubusy, tmp_path, env, seconds=1.0, **more):
    process = subprocess.Popen(
        [gpubusy, "-q", "-o", str(tmp_path / "out"), sys.executable, "-c", COUNTER, str(seconds)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        env=env, **more,
    )
    line = process.stdout.readline().split()
    assert line[0] == "ready"
    return process, int(line[1])


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_signal_to_the_launcher_reaches_the_program_once(gpubusy, tmp_path, clean_environment, name):
    process, _ = start_counter(gpubusy, tmp_path, clean_environment)
    process.send_signal(getattr(signal, name))
    out, _ = process.communicate(timeout=20)
    assert out.split() == [name]
    assert process.returncode == 9


@pytest.mark.parametrize("repeat", range(5))
def test_signal_to_the_group_reaches_the_program_once(
    gpubusy, tmp_path, clean_environment, repeat
):
    process, _ = start_counter(gpubusy, tmp_path, clean_environment, start_new_session=True)
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert out.split() == ["SIGTERM", "SIGUSR1"]
    assert process.returncode == 9


def test_signals_one_after_the_other(gpubusy, tmp_path, clean_environment):
    process, _ = start_counter(gpubusy, tmp_path, clean_environment, seconds=2)
    for _ in range(5):
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    out, _ = process.communicate(timeout=20)
    assert out.split() == ["SIGUSR1"] * 5


def test_default_action_of_a_forwarded_signal(gpubusy, tmp_path, clean_environment):
    process = subprocess.Popen([gpubusy, "-o", str(tmp_path / "out"), "sleep", "30"],
                               env=clean_environment, stderr=subprocess.PIPE)
    time.sleep(0.5)
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGTERM


def test_program_goes_on_when_the_launcher_is_killed(gpubusy, tmp_path, clean_environment):
    script = "sleep 1; echo done > marker"
    process = subprocess.Popen([gpubusy, "sh", "-c", script], env=clean_environment, cwd=tmp_path)
    time.sleep(0.4)
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while not (tmp_path / "marker").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_signal_of_the_program_to_its_parent_reaches_ours(gpubusy, tmp_path, clean_environment):
    script = """
import signal, subprocess, sys
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append("usr1"))
subprocess.run(sys.argv[1:] + ["sh", "-c", "kill -USR1 $PPID; sleep 0.3"], stderr=subprocess.DEVNULL)
print(seen)
"""
    out = subprocess.run([sys.executable, "-c", script, gpubusy], env=clean_environment,
                         cwd=tmp_path, capture_output=True, text=True, timeout=30).stdout
    assert out == "['usr1']\n"


def test_stopped_with_the_program_and_continued_with_it(gpubusy, tmp_path, clean_environment):
    process, child = start_counter(gpubusy, tmp_path, clean_environment, seconds=0.5)

    def state(pid):
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0]

    os.kill(child, signal.SIGSTOP)
    deadline = time.monotonic() + 5
    while state(process.pid) != "T":
        assert time.monotonic() < deadline, "the launcher does not stop"
        time.sleep(0.02)
    os.kill(child, signal.SIGCONT)  # the program alone
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 9
    assert out.split() == ["SIGCONT"]


def test_continue_through_the_launcher(gpubusy, tmp_path, clean_environment):
    process, child = start_counter(gpubusy, tmp_path, clean_environment, seconds=0.5)
    os.kill(child, signal.SIGSTOP)
    time.sleep(0.3)
    process.send_signal(signal.SIGCONT)
    process.communicate(timeout=20)
    assert process.returncode == 9


# In a session of its own with a terminal, as a shell's foreground job. Prints how the job stopped
# and ended.
JOB_CONTROL = r"""
import os, pty, signal, sys, time
keys = sys.argv[1].encode().decode("unicode_escape").encode("latin1")
command = sys.argv[2:]
session, master = pty.fork()
if session:
    out = b""
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        if b"ready" in data and keys:
            time.sleep(0.3)
            os.write(master, keys)
            keys = b""
        out += data
    os.waitpid(session, 0)
    os.write(1, out.replace(b"\r\n", b"\n"))
    sys.exit(0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
job = os.fork()
if job == 0:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execvp(command[0], command)
while True:
    _, status = os.waitpid(job, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.write(1, b"stopped %d\n" % os.WSTOPSIG(status))
        os.killpg(job, signal.SIGCONT)
        continue
    os.write(1, b"ended %d\n" % os.waitstatus_to_exitcode(status))
    break
"""


def in_terminal(keys, command, env, cwd):
    result = subprocess.run(
        [sys.executable, "-c", JOB_CONTROL, keys, *command], env=env, cwd=cwd,
        capture_output=True, text=True, timeout=60,
    )
    assert result.returncode == 0, result.stderr
    # Without the terminal's echo of the keys, and without what we say ourselves.
    lines = [re.sub(r"\^[CZ\\]", "", line) for line in result.stdout.splitlines()]
    return [line for line in lines if not line.startswith(("gpubusy:", "ready"))]


@pytest.mark.parametrize("keys", ["\\x03", "\\x1a", "\\x1c"])
@pytest.mark.parametrize("program", ["handler", "default"])
def test_keys_of_the_terminal(gpubusy, tmp_path, clean_environment, keys, program):
    if program == "handler":
        command = [sys.executable, "-c", COUNTER, "1"]
    else:
        command = ["sh", "-c", "ulimit -c 0; echo ready; exec sleep 1"]
    native = in_terminal(keys, command, clean_environment, tmp_path)
    ours = in_terminal(keys, [gpubusy, *command], clean_environment, tmp_path)
    assert ours == native


# ---- input, output, surroundings -----------------------------------------------------------------


def test_bytes_pass_unchanged(gpubusy, run):
    data = os.urandom(3_000_000)
    result = run([gpubusy, "-q", "cat"], input=data, text=False)
    assert result.stdout == data


def test_closed_reader_is_seen_by_the_program(gpubusy, tmp_path, clean_environment):
    result = subprocess.run(
        ["bash", "-c", f"'{gpubusy}' -q yes | head -n 1; echo ${{PIPESTATUS[@]}}"],
        env=clean_environment, cwd=tmp_path, capture_output=True, text=True, timeout=20,
    )
    assert result.stdout == "y\n141 0\n"


SURROUNDINGS = """
import os, resource, signal
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["SigBlk"], status["SigIgn"], status["SigCgt"])
print(sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
             if os.path.exists(f"/proc/self/fd/{fd}")))
print(os.getpgrp(), os.getsid(0), os.getcwd(), resource.getrlimit(resource.RLIMIT_CORE))
print(sorted(k for k in os.environ if not k.startswith("GPUBUSY_")
             and k not in ("LD_PRELOAD", "ASAN_OPTIONS", "NVTX_INJECTION64_PATH")))
"""


def test_surroundings_are_the_same(gpubusy, tmp_path, clean_environment):
    def strange():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})

    def look(prefix):
        with open(tmp_path / "in", "w"), open(tmp_path / "in") as stdin:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-c", SURROUNDINGS], env=clean_environment, cwd=tmp_path,
                preexec_fn=strange, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                text=True,
            )
        out = process.communicate(timeout=30)[0]
        assert process.returncode == 0
        # The pipe for stdout is a new one in each run.
        return re.sub(r"pipe:\[\d+\]", "pipe", out)

    assert look([gpubusy, "-q"]) == look([])


def test_inherited_ignored_sigchld_does_not_lose_the_exit_code(gpubusy, tmp_path, clean_environment):
    result = subprocess.run(
        [gpubusy, "sh", "-c", "exit 7"], env=clean_environment, cwd=tmp_path, timeout=20,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert result.returncode == 7


def test_user_preload_is_kept_behind_ours(gpubusy, library, run):
    command = [gpubusy, "cat", "/proc/self/environ"]
    value = {}
    for name, users in [("plain", "libm.so.6 libdl.so.2:libpthread.so.0"), ("none", None),
                        ("ours", f"libm.so.6:{library}")]:
        out = run(command, env={"LD_PRELOAD": users} if users else None).stdout
        value[name] = re.search(r"\0LD_PRELOAD=([^\0]*)", "\0" + out)[1]
    assert value["plain"] == f"{library}:libm.so.6:libdl.so.2:libpthread.so.0"
    assert value["none"] == str(library)
    assert value["ours"] == f"{library}:libm.so.6"


def test_address_sanitizer_program_starts(gpubusy, run, compiler, compile_c):
    program = compile_c("asan", "int main(void){return 6;}", "-fsanitize=address")
    assert run([gpubusy, program]).returncode == 6
    assert run([gpubusy, "sh", "-c", program]).returncode == 6
    runtime = subprocess.run([compiler, "-print-file-name=libasan.so"], capture_output=True,
                             text=True).stdout.strip()
    runtime = os.path.realpath(runtime)
    result = run([gpubusy, program], env={"LD_PRELOAD": runtime})
    assert result.returncode == 6


# ---- refusals ------------------------------------------------------------------------------------

BAD_OPTIONS = [
    (["--wait", "-1"], "--wait='-1': allowed is a whole number from 0"),
    (["--wait=x"], "--wait='x'"),
    (["--wait="], "--wait=''"),
    (["--wait"], "--wait"),
    (["--active", "0"], "--active='0': allowed is a whole number from 1"),
    (["--active", "99999999999999999999"], "--active="),
    (["--max-size", "1T"], "--max-size='1T'"),
    (["--max-size", "1"], "--max-size='1'"),
    (["--python-stacks", "maybe"], "--python-stacks='maybe': allowed is 0, 1, off, on"),
    (["--step", "epoch"], "--step='epoch': allowed is optimizer, kernel:GLOB, call:NAME, nvtx:GLOB or none"),
    (["--capture-range", "profiler"],
     "--capture-range='profiler': allowed is cudaProfilerApi, nvtx:GLOB or none"),
    (["--device-time", "gpu"], "--device-time='gpu': allowed is auto, cupti, events or off"),
    (["--wiat", "3"], "unknown option --wiat"),
    (["-x"], "unknown option -x"),
    (["--quiet=1"], "--quiet takes no value"),
    (["--output", ""], "--output=''"),
    (["--output", "a%z"], "a%z"),
    (["--output", "%q{GPUBUSY_TEST_NOT_SET}"], "GPUBUSY_TEST_NOT_SET"),
    (["--output", "/dev/null/parent"], "/dev/null/parent"),
    (["--output", "/proc/missing/parent"], "/proc/missing/parent"),
    (["--output", "made/" + "x" * 300], "cannot make output directory 'made/xxx"),
    (["--output", "/dev/null"], "not a directory"),
    (["--output", "/proc"], "/proc"),
    (["--report", "missing/report.txt"], "missing/report.txt"),
    (["--explain-schedule=0"], "--explain-schedule='0'"),
]


@pytest.mark.parametrize("options,message", BAD_OPTIONS, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_bad_options_start_nothing(gpubusy, run, tmp_path, options, message):
    result = run([gpubusy, *options, "touch", "started"])
    assert result.returncode == 125
    assert message in result.stderr
    assert result.stderr.startswith("gpubusy: ") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


BAD_VARIABLES = [
    ("GPUBUSY_WAIT", "-1"), ("GPUBUSY_WAIT", ""), ("GPUBUSY_WAIT", " 3"), ("GPUBUSY_ACTIVE", "0"),
    ("GPUBUSY_ACTIVE", "1e3"), ("GPUBUSY_REPEAT", "99999999999999999999"),
    ("GPUBUSY_SKIP_FIRST", "ten"), ("GPUBUSY_MAX_SIZE", "1KB"), ("GPUBUSY_PRELUDE_SIZE", "-5M"),
    ("GPUBUSY_PYTHON_STACKS", "2"), ("GPUBUSY_STEP", "kernel:"), ("GPUBUSY_DEVICE_TIME", "gpu"),
    ("GPUBUSY_OUTPUT", "%"), ("GPUBUSY_WIAT", "5"), ("GPUBUSY_STEP", "x" * 6000),
]


@pytest.mark.parametrize("name,value", BAD_VARIABLES, ids=lambda v: v[:20])
def test_bad_variables_stop_the_launcher(gpubusy, run, tmp_path, name, value):
    result = run([gpubusy, "touch", "started"], env={name: value})
    assert result.returncode == 125
    assert name in result.stderr and value[:100] in result.stderr
    assert result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name,value", BAD_VARIABLES, ids=lambda v: v[:20])
def test_bad_variables_never_stop_the_program(library, run, tmp_path, cuda_program, name, value):
    environment = {"LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(tmp_path / "out"), name: value}
    result = run(["sh", "-c", 'echo out; "$@"; exit $?', "sh", *cuda_program], env=environment)
    assert (result.returncode, result.stdout) == (3, "out\n")
    assert name in result.stderr and value[:100] in result.stderr
    assert result.stderr.count("\n") == 1, "one line for the whole tree of processes"
    assert recordings(tmp_path) == []


def test_an_option_replaces_a_bad_variable(gpubusy, run):
    result = run([gpubusy, "--wait", "3", "sh", "-c", "echo $GPUBUSY_WAIT"],
                 env={"GPUBUSY_WAIT": "x"})
    assert (result.returncode, result.stdout) == (0, "3\n")


def can_mount(tmp_path, options):
    where = tmp_path / "small"
    where.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(where)],
                             capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no right to mount a small file system")
    return where


def test_full_disk_is_refused(gpubusy, run, tmp_path):
    small = can_mount(tmp_path, "size=128k")
    try:
        result = run([gpubusy, "-o", "small/out", "touch", "started"])
        assert result.returncode == 125
        assert "bytes free" in result.stderr and result.stderr.count("\n") == 1
        assert not (tmp_path / "started").exists()
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_disk_that_fills_up_does_not_disturb(gpubusy, run, tmp_path, cuda_program):
    small = can_mount(tmp_path, "size=1100k")
    try:
        script = 'dd if=/dev/zero of=small/fill bs=4k 2>/dev/null; echo out; exec "$@"'
        result = run([gpubusy, "-o", "small/out", "sh", "-c", script, "sh", *cuda_program])
        assert (result.returncode, result.stdout) == (3, "out\n")
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_library_on_a_noexec_file_system_is_refused(gpubusy, library, run, tmp_path):
    small = can_mount(tmp_path, "size=16m,noexec")
    try:
        shutil.copy(library, small / "libgpubusy.so")
        result = run([gpubusy, "touch", "started"],
                     env={"GPUBUSY_INTERNAL_LIBRARY": str(small / "libgpubusy.so")})
        assert result.returncode == 125
        assert "mounted noexec" in result.stderr and result.stderr.count("\n") == 1
        assert not (tmp_path / "started").exists()
    finally:
        subprocess.run(["umount", str(small)], check=True)


# ---- paths ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a b", "a:b", "é ü 日本", "100%%", "a'b\"c", "$HOME", "x\ny", "-dash"])
def test_output_directories_of_any_name(gpubusy, run, tmp_path, cuda_program, name):
    result = run([gpubusy, f"--output={name}", *cuda_program])
    assert result.returncode == 3, result.stderr
    assert len(list((tmp_path / name.replace("%%", "%")).glob("*.gpubusy"))) == 1, result.stderr


def test_parents_of_an_output_directory_are_made(gpubusy, run, tmp_path, cuda_program):
    """As without the launcher."""
    result = run([gpubusy, "-q", "-o", "new/deeper/out", *cuda_program])
    assert result.returncode == 3, result.stderr
    assert list((tmp_path / "new" / "deeper" / "out").glob("*.gpubusy"))
    (tmp_path / "file").write_text("")
    refused = run([gpubusy, "-o", "file/out", *cuda_program])
    assert refused.returncode == 125 and "cannot make output directory 'file/out'" in refused.stderr


def test_output_pattern(gpubusy, run, tmp_path, cuda_program):
    result = run([gpubusy, "-o", "r%n-%q{GPUBUSY_TEST_JOB}", *cuda_program],
                 env={"RANK": "4", "GPUBUSY_TEST_JOB": "j7"})
    assert result.returncode == 3
    assert len(list((tmp_path / "r4-j7").glob("*.gpubusy"))) == 1


@pytest.mark.parametrize("name", ["a b", "a:b", "é", "a$b"])
def test_installed_in_a_folder_of_any_name(gpubusy, library, run, tmp_path, cuda_program, name):
    folder = tmp_path / name
    for source, target in [(gpubusy, "bin/gpubusy"), (library, "lib/libgpubusy.so")]:
        (folder / target).parent.mkdir(parents=True)
        with open(source, "rb") as f:
            (folder / target).write_bytes(f.read())
        (folder / target).chmod(0o755)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    result = run([folder / "bin/gpubusy", "-o", "out", *cuda_program],
                 env={"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": ""})
    assert result.returncode == 3
    assert len(recordings(tmp_path / "out")) == 1, result.stderr
    assert list(temporary.iterdir()) == [], "the link to the library is removed"


def test_default_directory_and_nothing_left_where_nothing_was_recorded(
    gpubusy, run, tmp_path, cuda_program
):
    run([gpubusy, "true"])
    assert list(tmp_path.iterdir()) == []
    run([gpubusy, *cuda_program])
    (made,) = tmp_path.iterdir()
    assert re.fullmatch(r"gpubusy-\d{8}T\d{6}Z-\d+", made.name)
    assert len(recordings(made)) == 1
    assert not [p for p in made.iterdir() if p.name.startswith(".")]


def test_a_second_run_adds_and_never_overwrites(gpubusy, run, tmp_path, cuda_program):
    first = run([gpubusy, "-o", "out", *cuda_program])
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    second = run([gpubusy, "-o", "out", *cuda_program])
    assert first.returncode == second.returncode == 3
    after = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert {k: after[k] for k in before} == before
    assert len(recordings(tmp_path / "out")) == 2
    assert "1 process loaded the library, 1 recorded" in second.stderr


# ---- what is said --------------------------------------------------------------------------------


def test_static_program(gpubusy, run, compile_c):
    program = compile_c("static", "int main(void){return 4;}", "-static")
    result = run([gpubusy, program])
    assert result.returncode == 4
    assert "nothing was recorded" in result.stderr and "statically linked" in result.stderr


def test_script_of_a_static_interpreter(gpubusy, run, tmp_path, compile_c):
    program = compile_c("static", "int main(void){return 4;}", "-static")
    script = tmp_path / "script"
    script.write_text(f"#!{program}\n")
    script.chmod(0o755)
    result = run([gpubusy, "./script"])
    assert result.returncode == 4
    assert "statically linked" in result.stderr


def test_32_bit_program_is_not_disturbed(gpubusy, run, i386_program):
    result = run([gpubusy, i386_program(5)])
    assert result.returncode == 5
    assert "32-bit" in result.stderr and "64-bit x86-64" in result.stderr


def test_older_glibc_is_not_disturbed(gpubusy, run, tmp_path, compiler, compile_c):
    """A program with a loader of its own, beside which lies an older libc."""
    loaders = [p for p in ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")
               if os.path.exists(p)]
    if not loaders:
        pytest.skip("no known loader")
    folder = tmp_path / "old"
    folder.mkdir()
    loader = shutil.copy(os.path.realpath(loaders[0]), folder / "ld.so")
    (tmp_path / "map").write_text("GLIBC_2.5 { global: old_function; };\n")
    (tmp_path / "old.c").write_text("void old_function(void) {}\n")
    made = subprocess.run([compiler, "-shared", "-fPIC", "-nostdlib", str(tmp_path / "old.c"),
                           f"-Wl,--version-script={tmp_path / 'map'},-soname,libc.so.6", "-o",
                           str(folder / "libc.so.6")], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    program = compile_c("program", "int main(void){return 4;}",
                        f"-Wl,--dynamic-linker={loader}")
    result = run([gpubusy, program])
    assert result.returncode == 4
    assert re.search(r"runs on glibc 2\.5, libgpubusy\.so needs 2\.\d+", result.stderr)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a set-user-ID program")
def test_setuid_program(gpubusy, library, run):
    import tempfile

    folder = tempfile.mkdtemp(dir="/tmp")
    try:
        os.chmod(folder, 0o755)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip("/tmp is mounted nosuid")
        program = os.path.join(folder, "id")
        shutil.copy("/usr/bin/id", program)
        os.chmod(program, 0o4755)
        out = os.path.join(folder, "out")
        os.mkdir(out)
        os.chmod(out, 0o777)
        # The build tree may lie where others cannot read.
        for source, place in ((gpubusy, "bin"), (library, "lib")):
            os.mkdir(os.path.join(folder, place))
            shutil.copy(source, os.path.join(folder, place))
        launcher = os.path.join(folder, "bin", "gpubusy")
        result = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", launcher, "-o",
                      out, program, "-u"], cwd="/")
        assert (result.returncode, result.stdout) == (0, "0\n")
        assert "is set-user-ID" in result.stderr
    finally:
        shutil.rmtree(folder)


def test_cleared_environment(gpubusy, run):
    result = run([gpubusy, "env", "-i", "/bin/sh", "-c", "exit 2"])
    assert result.returncode == 2
    assert "`env -i` clears the environment" in result.stderr


def test_no_cuda(gpubusy, run):
    result = run([gpubusy, "true"])
    assert "1 process loaded libgpubusy.so and no CUDA call was intercepted" in result.stderr


def test_verdict_goes_to_stderr_and_file(gpubusy, run, tmp_path, cuda_program):
    result = run([gpubusy, "-o", "out", "--report", "report.txt", *cuda_program])
    assert result.stdout == ""
    assert "1 process loaded the library, 1 recorded" in result.stderr
    assert "\x1b[" not in result.stderr
    assert len((tmp_path / "report.txt").read_text()) > 50
    quiet = run([gpubusy, "-q", "-o", "out2", *cuda_program])
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (3, "", "")


def test_helpers_are_counted_and_leave_nothing(gpubusy, run, tmp_path, cuda_program):
    script = "for i in 1 2 3 4 5 6 7 8; do cat /dev/null; done; exec \"$@\""
    result = run([gpubusy, "-o", "out", "bash", "-c", script, "bash", *cuda_program])
    assert result.returncode == 3
    # bash and the program are two images of one process.
    assert "9 processes loaded the library, 1 recorded" in result.stderr
    assert len(recordings(tmp_path)) == 1


def test_pipeline_ends_at_once_with_its_status(gpubusy, run, tmp_path, cuda_program):
    script = 'set -o pipefail; (echo text; "$@") 2>&1 | tee log'
    start = time.monotonic()
    result = run([gpubusy, "-o", "out", "bash", "-c", script, "bash", *cuda_program])
    assert (result.returncode, result.stdout) == (3, "text\n")
    assert (tmp_path / "log").read_text() == "text\n"
    assert time.monotonic() - start < 10


def test_does_not_wait_for_processes_that_outlive_the_program(gpubusy, run, tmp_path):
    start = time.monotonic()
    result = run([gpubusy, "sh", "-c", "sleep 20 >/dev/null 2>&1 </dev/null & echo $!; sleep 0.5; exit 6"])
    try:
        assert time.monotonic() - start < 10
        assert result.returncode == 6
        assert "1 process of the program still runs" in result.stderr
    finally:
        os.kill(int(result.stdout), signal.SIGKILL)


@pytest.mark.parametrize("schedule,windows", [
    ((0, 0, 5, 0, 0), ["0-4", "95-99"]),
    ((0, 1, 10, 0, 0), ["1-10", "89-98"]),
    ((1, 1, 3, 2, 2), ["4-6", "9-11"]),
])
def test_explain_schedule(gpubusy, run, schedule, windows):
    wait, warmup, active, repeat, skip = schedule
    out = run([gpubusy, "--wait", wait, "--warmup", warmup, "--active", active, "--repeat", repeat,
               "--skip-first", skip, "--explain-schedule=100"]).stdout
    recorded = [line.split()[0] for line in out.splitlines() if "recorded" in line]
    assert (recorded[0], recorded[-1]) == tuple(windows)
    assert "incomplete" not in out


def test_report_and_export_later(gpubusy, run, tmp_path, cuda_program):
    import json

    run([gpubusy, "--no-export", "-q", "-o", "out", "--step", "none", cuda_program[0], "kill"])
    assert len(recordings(tmp_path)) == 1
    report = run([gpubusy, "report", "out"])
    assert report.returncode == 0 and report.stdout
    assert json.loads(run([gpubusy, "report", "--json", "out"]).stdout)
    export = run([gpubusy, "export", "out"])
    for line in export.stdout.splitlines():
        assert os.path.exists(os.path.join(tmp_path, line))
    for arguments in (["report"], ["report", "a", "b"], ["export", "--json", "x"],
                      ["compare", "out"], ["report", "--nonsense", "out"]):
        assert run([gpubusy, *arguments]).returncode == 125
    empty = tmp_path / "empty"
    empty.mkdir()
    for path in ("empty", "nowhere", "/dev/null"):
        result = run([gpubusy, "report", path])
        assert result.returncode == 1 and result.stderr.startswith("gpubusy: ")


def test_step_call_that_is_not_recorded_is_refused_before_the_start(gpubusy, run, tmp_path):
    result = run([gpubusy, "--step", "call:cudaLaunchKernal", "touch", "started"])
    assert result.returncode == 125 and not list(tmp_path.iterdir())
    assert result.stderr.startswith("gpubusy: --step=call:cudaLaunchKernal: ")
    assert "call:cudaLaunchKernel" in result.stderr
    # Context calls are hooked but never recorded.
    for name in ("cudaSetDevice", "cuptiActivityEnable", "cudnnBackendExecute", "printf"):
        assert run([gpubusy, "--step", f"call:{name}", "true"]).returncode == 125
    by_variable = run([gpubusy, "true"], env={"GPUBUSY_STEP": "call:printf"})
    assert by_variable.returncode == 125 and "GPUBUSY_STEP=call:printf" in by_variable.stderr
    assert run([gpubusy, "--step", "call:cuLaunchKernel", "true"]).returncode == 0


def test_end_of_options_is_no_value(gpubusy, run, tmp_path):
    result = run([gpubusy, "-o", "--", "true"])
    assert (result.returncode, result.stderr) == (125, "gpubusy: -o needs a value\n")
    assert not list(tmp_path.iterdir())


def test_output_directory_that_is_removed_meanwhile(gpubusy, run, tmp_path):
    result = run([gpubusy, "-o", "out", "sh", "-c", "rm -r out; exit 4"])
    assert result.returncode == 4
    assert "was removed while the program ran" in result.stderr
    assert "security policy" not in result.stderr


def test_help_lists_every_setting(gpubusy, run):
    from pathlib import Path

    text = run([gpubusy, "--help"]).stdout
    table = (Path(__file__).parents[2] / "config" / "options.def").read_text()
    rows = re.findall(r'^OPTION\(\w+, "(\w+)", "([\w-]+)"', table, re.M)
    assert len(rows) >= 12
    for variable, flag in rows:
        assert variable in text and flag in text
    assert re.fullmatch(r"gpubusy \d+\.\d+\.\d+\n", run([gpubusy, "--version"]).stdout)
