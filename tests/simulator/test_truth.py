# SPDX-License-Identifier: Apache-2.0
"""The truth log: complete, consistent, and readable whatever becomes of its writer."""

import collections
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import truth

COUNT = 200


def by_name(calls, layer):
    return collections.Counter(c.name for c in calls if c.layer == layer)


def test_runtime_calls_and_operations(simulate, sim_work):
    log = simulate([sim_work, "runtime", COUNT]).log
    calls = by_name(log.calls, "runtime")
    assert calls["cudaLaunchKernel"] == COUNT
    assert calls["cudaMemcpyAsync"] == COUNT // 5
    assert not any(c.layer == "driver" for c in log.calls)  # they are inside the runtime's
    assert truth.counts(log) == {"kernel": COUNT, "HtoD": COUNT // 10, "DtoH": COUNT // 10}
    kernel = next(o for o in log.operations if o.kind == "kernel")
    assert kernel.name == "sim_work_kernel"
    assert kernel.grid == (8, 1, 1) and kernel.block == (128, 1, 1)
    copy = next(o for o in log.operations if o.copy_kind == "HtoD")
    assert (copy.source, copy.destination, copy.bytes) == ("pinned", "device", 4096)
    assert (copy.source_device, copy.destination_device) == (-1, 0)


def test_program_like_static_cudart_counts_the_same(simulate, sim_work):
    runtime = simulate([sim_work, "runtime", COUNT]).log
    static = simulate([sim_work, "static", COUNT]).log
    assert truth.counts(static) == truth.counts(runtime)
    calls = by_name(static.calls, "driver")
    assert calls["cuLaunchKernel"] == COUNT
    assert calls["cuMemcpyHtoDAsync_v2"] == COUNT // 10
    assert by_name(static.calls, "runtime") == {}


def test_correlations_and_times(simulate, sim_work):
    log = simulate([sim_work, "runtime", COUNT]).log
    calls = {c.correlation: c for c in log.calls}
    assert len(calls) == len(log.calls)
    for operation in log.operations:
        call = calls[operation.correlation]
        assert operation.start_ns >= call.start_ns
        assert operation.end_ns >= operation.start_ns
        expected = "cudaLaunchKernel" if operation.kind == "kernel" else "cudaMemcpyAsync"
        assert call.name == expected
    assert all(c.end_ns >= c.start_ns and c.result == 0 for c in log.calls)
    assert {c.thread for c in log.calls} == {log.pid}
    # The synchronisation ends when the last operation has.
    sync = next(c for c in log.calls if c.name == "cudaStreamSynchronize")
    assert sync.end_ns >= max(o.end_ns for o in log.operations)
    assert log.start_ns <= log.calls[0].start_ns + 10**9


def test_operations_of_a_stream_are_in_order(simulate, sim_work):
    log = simulate([sim_work, "runtime", COUNT]).log
    streams = collections.defaultdict(list)
    for operation in log.operations:
        streams[operation.device, operation.stream].append(operation)
    assert list(streams) == [(0, 13)]  # the first that a program creates
    for operations in streams.values():
        assert all(a.end_ns <= b.start_ns for a, b in zip(operations, operations[1:]))
        issue_order = sorted(operations, key=lambda o: o.correlation)
        assert issue_order == operations
    assert [s.stream for s in log.streams] == [13]
    busy = truth.busy_intervals(log.operations)
    assert truth.total_ns(busy) == sum(o.end_ns - o.start_ns for o in log.operations)


def test_stalls_and_injected_faults(simulate, sim_work):
    log = simulate([sim_work, "runtime", 100], context_ms=20, module_load_us=300,
                   stall="cudaLaunchKernel@50=5000").log
    stalls = collections.defaultdict(list)
    for stall in log.stalls:
        stalls[stall.reason].append(stall.end_ns - stall.start_ns)
    assert stalls["context creation"] == [20_000_000]
    assert stalls["module load"] == [300_000]
    assert stalls["device allocation"] == [80_000]
    assert stalls["injected"] == [5_000_000, 5_000_000]
    by_correlation = {c.correlation: c for c in log.calls}
    for stall in log.stalls:
        call = by_correlation[stall.correlation]
        assert call.start_ns <= stall.start_ns and stall.end_ns <= call.end_ns


def test_injected_failures(simulate, sim_work):
    run = simulate([sim_work, "runtime", 100], fail="cuLaunchKernel@30=719", check=False)
    assert run.returncode == 1
    failed = [c for c in run.log.calls if c.result != 0]
    assert [(c.name, c.result) for c in failed] == [("cudaLaunchKernel", 719)]
    assert truth.counts(run.log)["kernel"] == 29
    run = simulate([sim_work, "runtime", 1], fail_alloc_bytes=4096, check=False)
    assert run.returncode == 1 and "cudaMalloc" in run.stderr
    assert simulate([sim_work, "runtime", 1], fail_alloc_bytes=4097).returncode == 0


def test_functions_that_are_not_simulated(simulate):
    script = ("import ctypes; c = ctypes.CDLL(None)\n"
              "assert c.cudaMallocArray(None, None, 0, 0, 0) == 801\n"
              "assert c.cudaMallocArray(None, None, 0, 0, 0) == 801\n"
              "assert c.cublasStrsm_v2() == 15 and c.cudnnCTCLoss() == 3000\n")
    run = simulate([sys.executable, "-c", script])
    assert run.stderr == ""
    (log,) = run.logs
    assert [(u.library, u.name) for u in log.unimplemented] == [
        ("cudart", "cudaMallocArray"), ("cublas", "cublasStrsm_v2"), ("cudnn", "cudnnCTCLoss")]
    run = simulate([sys.executable, "-c", script], options=["--log"])
    assert run.stderr.splitlines()[0] == "gpubusy-sim: cudaMallocArray (cudart) is not simulated"
    assert len(run.stderr.splitlines()) == 3


@pytest.mark.parametrize("when", [signal.SIGKILL, signal.SIGTERM])
def test_survives_death(gpubusy_sim, sim_work, clean_environment, tmp_path, when):
    process = subprocess.Popen(
        [gpubusy_sim, "--set", "context_ms=1", "--truth", str(tmp_path), sim_work, "forever"],
        env=clean_environment, stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        assert process.stdout.readline() == "1000\n"
    process.send_signal(when)
    process.wait(timeout=60)
    (log,) = truth.load_directory(tmp_path)
    assert log.pid == process.pid
    assert truth.counts(log)["kernel"] >= 5000
    process.stdout.close()


def test_reader_takes_any_torn_file(simulate, sim_work):
    run = simulate([sim_work, "runtime", 50])
    data = Path(run.log.path).read_bytes()
    whole = truth.parse(data)
    for size in list(range(truth.RECORD_SIZE, 6000, 37)) + [len(data) - 1]:
        torn = truth.parse(data[:size])
        assert len(torn.operations) <= len(whole.operations)
    # A record whose writer died before it was valid.
    damaged = bytearray(data)
    damaged[5 * truth.RECORD_SIZE:5 * truth.RECORD_SIZE + 4] = b"\0\0\0\0"
    truth.parse(bytes(damaged))
    with pytest.raises(truth.TruthError):
        truth.parse(b"nothing")


def test_each_process_has_its_own_file(simulate, sim_work):
    run = simulate(["sh", "-c", f"{sim_work} runtime 10 & {sim_work} runtime 20; wait"])
    assert sorted(truth.counts(log)["kernel"] for log in run.logs) == [10, 20]
    # An exec in the same process opens another file; a process without CUDA opens none.
    script = f"""
import ctypes, os
count = ctypes.c_int()
assert ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(count)) == 0
os.execv({sim_work!r}, ["sim_work", "runtime", "5"])
"""
    run = simulate([sys.executable, "-c", script])
    assert len(run.logs) == 2 and len({log.pid for log in run.logs}) == 1
    run = simulate(["true"])
    assert not run.truth_dir.exists()


def test_forked_child_writes_a_file_of_its_own(simulate):
    script = """
import ctypes, os
cuda = ctypes.CDLL(None)
count = ctypes.c_int()
assert cuda.cudaFree(None) == 0
child = os.fork()
if child == 0:
    os._exit(0 if cuda.cudaGetDeviceCount(ctypes.byref(count)) == 3 else 1)
assert os.waitpid(child, 0)[1] == 0
assert cuda.cudaDeviceSynchronize() == 0
"""
    run = simulate([sys.executable, "-c", script])
    parent, child = run.logs
    assert child.parent_pid == parent.pid
    assert [(c.name, c.result) for c in child.calls] == [("cudaGetDeviceCount", 3)]
    assert [c.name for c in parent.calls] == ["cudaFree", "cudaDeviceSynchronize"]


def test_file_name_pattern(gpubusy_sim, sim_work, clean_environment, tmp_path):
    subprocess.run([gpubusy_sim, "--truth", str(tmp_path / "deep" / "t-%p.log"), sim_work,
                    "runtime", "3"], env=clean_environment, check=True, timeout=60)
    (path,) = (tmp_path / "deep").iterdir()
    assert path.name == f"t-{truth.load(path).pid}.log"


def test_log_that_cannot_be_written(gpubusy_sim, sim_work, clean_environment):
    result = subprocess.run([gpubusy_sim, "--truth", "/proc/nowhere", sim_work, "runtime", "3"],
                            env=clean_environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0
    assert "the truth log ends here" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_prints_json_lines(simulate, sim_work):
    run = simulate([sim_work, "runtime", 10])
    result = subprocess.run([sys.executable, truth.__file__, run.log.path], capture_output=True,
                            text=True, check=True)
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert sum(r["record"] == "operation" and r["kind"] == "kernel" for r in records) == 10
    result = subprocess.run([sys.executable, truth.__file__, os.devnull], capture_output=True,
                            text=True)
    assert result.returncode == 1 and "not a truth log" in result.stderr


def test_writing_is_cheap(simulate, sim_work):
    """About 130 ns a launch here; the bound is for slow and busy machines."""
    best = 1e9
    for _ in range(3):
        log = simulate([sim_work, "runtime", 20000], kernel_us=0.01).log
        launches = sorted(c.end_ns - c.start_ns for c in log.calls if c.name == "cudaLaunchKernel")
        best = min(best, launches[len(launches) // 2])
    assert best < 3000


def test_merge():
    assert truth.merge([(5, 6), (1, 3), (2, 4), (4, 4), (6, 7)]) == [(1, 4), (5, 7)]
    assert truth.total_ns([(1, 4), (5, 7)]) == 5
