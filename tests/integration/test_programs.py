# SPDX-License-Identifier: Apache-2.0
"""Small real programs behave with the library as without it, and are still recorded."""

import signal

import pytest


def recordings(directory):
    return sorted(directory.glob("*.gpubusy")) if directory.exists() else []


def same(plain, hooked):
    assert hooked.stdout == plain.stdout
    assert hooked.stderr == plain.stderr
    assert hooked.returncode == plain.returncode


def test_dlsym_next_chain(programs, run_plain, run_preloaded):
    """A wrapped dlsym that forwards by an ordinary call makes such a chain loop (field case I01)."""
    plain = run_plain([programs / "weak_next"])
    assert plain.stdout.startswith(b"A B C 1 ") and b"cuNoSuchFunction" in plain.stdout
    assert plain.returncode == 7
    same(plain, run_preloaded([programs / "weak_next"], timeout=5))


def test_library_loaded_locally(programs, run_plain, run_preloaded, tmp_path):
    """The CUDA runtime is not in the global scope, a plug-in is loaded by bare name (I04)."""
    command = [programs / "local_main", programs / "local" / "libgpubusy_test_local_plugin.so"]
    plain = run_plain(command)
    assert plain.stdout == b"42\n"
    same(plain, run_preloaded(command))
    assert len(recordings(tmp_path / "out")) == 1


def test_exceptions_cancellation_longjmp(programs, run_plain, run_preloaded, tmp_path):
    """I11: 100,000 exceptions through a hook leave no object behind, and hooks go on."""
    command = [programs / "leave_hook"]
    plain = run_plain(command)
    assert plain.stdout == b"alive 0 100000 1\nend\n"
    same(plain, run_preloaded(command, GPUBUSY_STEP="none"))
    assert len(recordings(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    "way, status",
    [
        ("return", 3), ("exit", 3), ("_exit", 3), ("quick_exit", 3), ("thread", 3), ("signal", 5),
        ("pthread_exit", 0), ("abort", -signal.SIGABRT), ("kill", -signal.SIGKILL),
        ("segv", -signal.SIGSEGV),
    ],
)
def test_every_way_to_end(programs, run_plain, run_preloaded, tmp_path, way, status):
    """I13: static destructors, exit in a thread or a signal handler, and every violent end."""
    command = [programs / "exit_ways", way]
    plain = run_plain(command)
    assert plain.returncode == status
    same(plain, run_preloaded(command, timeout=10))
    assert len(recordings(tmp_path / "out")) == 1


def test_unset_means_untouched(programs, run_plain, run_preloaded, tmp_path):
    """Without GPUBUSY_ variables a preloaded program is the same to the bit and writes nothing."""
    for command in ([programs / "leave_hook"], [programs / "weak_next"],
                    ["python3", "-c", "import sys; print(sys.version); sys.exit(9)"],
                    ["bash", "-c", "echo $((6*7)); exit 4"]):
        plain = run_plain(command)
        hooked = run_preloaded(command, output=None)
        same(plain, hooked)
    assert not list(tmp_path.iterdir())


def test_helpers_leave_nothing(run_plain, run_preloaded, tmp_path):
    """I05: processes without CUDA make no file and no directory."""
    command = ["bash", "-c", "for i in 1 2 3; do /bin/true; python3 -c 'print(1)'; done | tee /dev/null"]
    same(run_plain(command), run_preloaded(command))
    assert not (tmp_path / "out").exists()


def test_trace_without_launcher_is_not_noticed(programs, run_plain, run_preloaded, tmp_path):
    """A window's trace is written by a process that the program can neither see nor wait for."""
    import gzip
    import json
    import time

    plain = run_plain([programs / "export_unseen"])
    assert plain.stdout == b"eof 1 child -1 echild 1 sigchld 0 blocked 0\n"
    schedule = dict(
        GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="1", GPUBUSY_WARMUP="1",
        GPUBUSY_ACTIVE="3", GPUBUSY_REPEAT="2", GPUBUSY_EXPORT="1",
    )
    same(plain, run_preloaded([programs / "export_unseen"], **schedule))
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        traces = sorted((tmp_path / "out").glob("*.pt.trace.json.gz"))
        if len(traces) == 2:
            break
        time.sleep(0.05)
    assert len(traces) == 2, sorted(p.name for p in (tmp_path / "out").iterdir())
    steps = []
    for trace in traces:
        events = json.loads(gzip.open(trace).read())["traceEvents"]
        steps.append([e["name"] for e in events if e["name"].startswith("ProfilerStep#")])
        assert sum(e.get("cat") == "cuda_runtime" and e["name"] == "cudaLaunchKernel" for e in events) == 3
    assert sorted(steps) == [
        [f"ProfilerStep#{n}" for n in (2, 3, 4)], [f"ProfilerStep#{n}" for n in (7, 8, 9)],
    ]
