# SPDX-License-Identifier: Apache-2.0
"""However a program comes by a CUDA function, it reaches the one it would have reached."""

import json
import subprocess

import pytest


def same(plain, hooked):
    assert hooked.stdout == plain.stdout
    assert hooked.stderr == plain.stderr
    assert hooked.returncode == plain.returncode


@pytest.fixture
def events(build_dir, tmp_path):
    """Events of the calls in the recording of the last run."""

    def read():
        traces = tmp_path / "traces"
        traces.mkdir()
        subprocess.run(
            [build_dir / "bin" / "gpubusy", "export", tmp_path / "out", "-o", traces,
             "--no-compress"],
            check=True, capture_output=True, timeout=60,
        )
        return [
            event
            for trace in traces.glob("*.json")
            for event in json.loads(trace.read_text())["traceEvents"]
            if event.get("cat") in ("cuda_runtime", "cuda_driver")
        ]

    return read


@pytest.fixture
def definitions(tmp_path):
    """The recording's bytes: names stand in them as they are."""

    def read():
        [recording] = (tmp_path / "out").glob("*.gpubusy")
        return recording.read_bytes()

    return read


@pytest.mark.parametrize(
    "calls_before, configured",
    [(0, False), (1, False), (30, False), (0, True), (1, True), (30, True)],
)
def test_constructor_that_waits_for_a_call(
    programs, run_plain, run_preloaded, tmp_path, calls_before, configured
):
    """dlopen() holds the loader's lock meanwhile: a hook that asks the loader hangs for ever."""
    command = [
        programs / "constructor_waits", calls_before,
        programs / "libgpubusy_test_constructor_library.so",
    ]
    plain = run_plain(command)
    assert plain.stdout == b"constructed\nloaded 1\n"
    output = tmp_path / "out" if configured else None
    same(plain, run_preloaded(command, output=output))


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("scope", ["global", "local"])
def test_plugin_is_unloaded_and_loaded_again(
    programs, run_plain, run_preloaded, tmp_path, scope, configured
):
    """Real functions go with their library, and libraries are not kept loaded."""
    command = [programs / "plugin_host", scope, programs / "libgpubusy_test_plugin.so"]
    plain = run_plain(command)
    once = b"work 2\nplug-in unloaded\nruntime unloaded\ndlclose 0\n"
    assert plain.stdout == 2 * once + b"bad handle 0\n"
    output = tmp_path / "out" if configured else None
    same(plain, run_preloaded(command, output=output))


def test_plugin_is_recorded_again(programs, run_preloaded, events):
    command = [programs / "plugin_host", "local", programs / "libgpubusy_test_plugin.so"]
    run_preloaded(command, GPUBUSY_STEP="none")
    assert [e["name"] for e in events()] == 4 * ["cudaDeviceSynchronize"]


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("order", [("12", "13"), ("13", "12"), None])
def test_two_runtimes_in_one_process(
    programs, run_plain, run_preloaded, tmp_path, order, configured
):
    """Each library stays with the libcudart that it was linked to."""
    command = [programs / "two_runtimes_linked"]
    if order is not None:
        command = [programs / "two_runtimes_loaded"]
        command += [programs / f"libgpubusy_test_uses_{version}.so" for version in order]
    plain = run_plain(command)
    for version in (b"12", b"13"):
        lines = [line for line in plain.stdout.splitlines() if line.startswith(version)]
        assert lines[0] == version + b": " + version + b" " + version + b" 101 1"
        assert lines[1] == version + b": " + version + b" " + version + b" 102 2"
    output = tmp_path / "out" if configured else None
    same(plain, run_preloaded(command, output=output, GPUBUSY_STEP="none") if configured
         else run_preloaded(command, output=None))


def test_two_runtimes_are_both_recorded(programs, run_preloaded, events):
    run_preloaded([programs / "two_runtimes_linked"], GPUBUSY_STEP="none")
    names = [e["name"] for e in events()]
    assert names.count("cudaMalloc") == names.count("cudaDeviceSynchronize") == 4


@pytest.mark.parametrize("configured", [False, True])
def test_dlsym_of_another_preloaded_library(
    programs, library, run_plain, run_preloaded, tmp_path, configured
):
    """A preloaded limiter that answers dlsym keeps its say, whether we record or not."""
    limiter = programs / "libgpubusy_test_limiter.so"
    path = f"LD_LIBRARY_PATH={programs / 'driver'}"
    command = [programs / "dlsym_alloc", programs / "driver" / "libcuda.so.1"]
    assert run_plain(["env", path, *command]).stdout == b"0 0\n"
    plain = run_plain(["env", path, f"LD_PRELOAD={limiter}", *command])
    assert plain.stdout == b"0 2\n"
    output = tmp_path / "out" if configured else None
    for order in ([library, limiter], [limiter, library]):
        preload = ":".join(str(path) for path in order)
        same(plain, run_preloaded(["env", path, *command], output=output, LD_PRELOAD=preload))


@pytest.mark.parametrize("configured", [False, True])
def test_no_cuda_is_seen_where_there_is_none(
    programs, run_plain, run_preloaded, tmp_path, configured
):
    output = tmp_path / "out" if configured else None
    for command in (
        [programs / "no_cuda"],
        [programs / "no_cuda", programs / "libgpubusy_test_toy_cuda.so"],
    ):
        plain = run_plain(command)
        assert b"default cudaMalloc 0: undefined symbol: cudaMalloc\n" in plain.stdout
        assert b"libdoes-not-exist.so" in plain.stdout
        same(plain, run_preloaded(command, output=output))


def test_calls_after_a_longjmp_are_recorded(programs, run_plain, run_preloaded, events):
    """A hook that was left by longjmp cannot say so: calls from deeper down are not inside it."""
    plain = run_plain([programs / "jump_out"])
    assert plain.stdout == b"done\n"
    same(plain, run_preloaded([programs / "jump_out"], GPUBUSY_STEP="none"))
    names = [e["name"] for e in events()]
    assert names.count("cudaLaunchKernel") == 1002
    assert names.count("cudaLaunchHostFunc") == 1


def test_kernels_registered_before_our_constructor(programs, run_plain, run_preloaded, definitions):
    same(run_plain([programs / "early_kernels"]),
         run_preloaded([programs / "early_kernels"], GPUBUSY_STEP="none"))
    assert b"kernel_of_program" in definitions()
    assert b"kernel_of_linked_library" in definitions()


def test_versions_asked_of_the_driver(programs, run_plain, run_preloaded, events):
    """cuGetProcAddress: an old version of a function is not the one behind the hook."""
    command = [programs / "proc_address", programs / "driver" / "libcuda.so.1"]
    plain = run_plain(command)
    assert plain.stdout.endswith(b"101 102 103\n201 202\n7\n")
    same(plain, run_preloaded(command, GPUBUSY_STEP="none"))
    names = [e["name"] for e in events()]
    assert names.count("cuMemAlloc") == 5
    assert names.count("cuCtxSynchronize") == 2  # of different parameters
    assert names.count("cuStreamBeginCapture") == 2  # and not the old one


def test_functions_found_by_dlvsym(programs, run_plain, run_preloaded, events):
    """dlvsym is answered from the hook table as dlsym is; a missing version stays missing."""
    command = [programs / "dlvsym_calls", programs / "libgpubusy_test_cuda_12.so"]
    plain = run_plain(command)
    assert b"default 13: 13\n" in plain.stdout and b"handle 12: 12\n" in plain.stdout
    assert b"default 12: -1\n" in plain.stdout and b"unknown version: -1\n" in plain.stdout
    assert plain.stdout.endswith(b"chain: 102\n")  # a library that looks for the one behind itself
    same(plain, run_preloaded(command, GPUBUSY_STEP="none"))
    # One runtime stands behind the hook, and that is the program's own. What is not hooked is right.
    assert [e["name"] for e in events()].count("cudaMalloc") >= 3
