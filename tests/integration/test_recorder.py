# SPDX-License-Identifier: Apache-2.0
"""What the recorder must not do to a program, and must not say untruly (tests/programs/recorder)."""

import gzip
import json
import subprocess
import time

import pytest


@pytest.fixture
def cases(programs):
    return programs / "recorder" / "cases"


@pytest.fixture
def case(cases, run_plain, run_preloaded):
    """Runs a case with and without the library: the program must not tell the difference."""

    def run(name, **settings):
        plain = run_plain([cases, name])
        settings.setdefault("GPUBUSY_STEP", "none")
        hooked = run_preloaded([cases, name], timeout=40, **settings)
        assert hooked.stdout == plain.stdout
        assert hooked.stderr == plain.stderr
        assert hooked.returncode == plain.returncode
        return plain

    return run


@pytest.fixture
def report(build_dir, clean_environment, tmp_path):
    """The processes of tmp_path/out as `gpubusy report --json` tells them."""

    def run(directory=tmp_path / "out"):
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy", "report", "--json", directory],
            env=clean_environment, capture_output=True, timeout=60,
        )
        assert result.stdout, result.stderr
        return json.loads(result.stdout)["processes"]

    return run


def calls(process):
    return {row["name"]: row["count"] for row in process["calls_by_name"]}


def test_cancelled_while_the_recording_opens(case, report):
    """A1: the thread dies with our lock, and every other thread hangs."""
    assert case("cancel").stdout == b"returned 1 cancelled 1\nlaunched\n"
    (process,) = report()
    assert calls(process)["cudaLaunchKernel"] == 2


def test_cancelled_while_blocks_are_written(case, report):
    case("cancel_writers", GPUBUSY_DEVICE_TIME="off", GPUBUSY_PYTHON_STACKS="0")
    (process,) = report()
    assert process["lost_records"] == process["torn_blocks"] == process["bad_records"] == 0


def test_fork_while_a_module_is_unloaded(case):
    """A2: two locks, taken in both orders."""
    assert case("unload_and_fork").stdout == b"end\n"


def test_exit_in_a_signal_handler_inside_the_driver(case, report):
    """A11: the driver's lock is held by the interrupted call; nothing may ask the driver."""
    assert case("exit_in_signal_handler").returncode == 7
    (process,) = report()
    assert process["state"] == "finished"


def test_recording_ends_with_the_exit_handlers(case, report):
    """A16: steps of other threads brought the recording back to life."""
    case("launches_during_exit", GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="1",
         GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="3", GPUBUSY_REPEAT="0")
    (process,) = report()
    assert process["state"] == "finished"
    assert process["lost_records"] == 0


def test_failed_end_leaves_the_capture_alive(case, report):
    """A9: a capture in global mode must not see a query of ours."""
    assert case("failed_end_of_capture").stdout == b"unsafe 0 dead 0\n"
    (process,) = report()
    coverage = process["coverage"]
    assert coverage["untimed_capture"] == 500
    assert coverage["device_work_expected"] == 1101
    # All but the first call, which makes the context for a real driver, and those of the capture.
    assert coverage["device_work_timed"] == 601


def test_events_die_with_their_context(case, report):
    """A10: cudaDeviceReset() takes our events with it."""
    assert case("reset_device").stdout == b"dead 0\n"
    (process,) = report()
    assert process["coverage"]["device_work_expected"] == 700
    assert process["coverage"]["device_work_timed"] == 700


def test_a_step_function_below_the_one_that_is_recorded(case, report):
    """B21: cuLaunchKernel is called by cudaLaunchKernel. B26: the five that fail end no step."""
    case("steps", GPUBUSY_STEP="call:cuLaunchKernel", GPUBUSY_WAIT="1", GPUBUSY_WARMUP="1",
         GPUBUSY_ACTIVE="4", GPUBUSY_REPEAT="0")
    (process,) = report()
    assert process["steps_seen"] == 10


def test_a_step_kernel_that_only_the_driver_can_name(case, report):
    case("steps", GPUBUSY_STEP="kernel:driver_only*", GPUBUSY_WAIT="1", GPUBUSY_WARMUP="1",
         GPUBUSY_ACTIVE="4", GPUBUSY_REPEAT="0")
    (process,) = report()
    assert process["steps_seen"] == 10


@pytest.mark.parametrize("name", ["cudaSetDevice", "cuGetProcAddress", "__cudaRegisterFunction"])
def test_a_function_that_can_end_no_step_is_refused(cases, run_preloaded, tmp_path, name):
    result = run_preloaded([cases, "steps"], GPUBUSY_STEP=f"call:{name}")
    assert f"'{name}' is not a function whose calls are recorded".encode() in result.stderr
    assert not (tmp_path / "out").exists()


def streams_of(build_dir, recording):
    subprocess.run([build_dir / "bin" / "gpubusy", "export", recording, "--quiet"], check=True,
                   capture_output=True)
    found = []
    for trace in recording.parent.glob("*.pt.trace.json.gz"):
        for event in json.loads(gzip.open(trace).read())["traceEvents"]:
            if event.get("cat") == "kernel":
                found.append(event["args"]["stream"])
    return found


def test_a_handle_that_is_used_again_is_another_stream(case, build_dir, tmp_path):
    """B22: also where the stream is destroyed between the windows."""
    case("streams", GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_SKIP_FIRST="0",
         GPUBUSY_WAIT="1", GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="1", GPUBUSY_REPEAT="0",
         GPUBUSY_PRELUDE_SIZE="0")
    (recording,) = (tmp_path / "out").glob("*.gpubusy")
    found = streams_of(build_dir, recording)
    assert len(found) == 3 and len(set(found)) == 3, found


def test_relative_output_and_chdir(cases, run_preloaded, clean_environment, library, tmp_path):
    """B23: the directory is meant from where the program was started."""
    (tmp_path / "start").mkdir()
    environment = {**clean_environment, "LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": "out",
                   "GPUBUSY_STEP": "none", "GPUBUSY_EXPORT": "0"}
    subprocess.run([cases, "change_directory"], env=environment, cwd=tmp_path / "start", check=True,
                   timeout=30)
    assert len(list((tmp_path / "start" / "out").glob("*.gpubusy"))) == 1


def test_child_that_no_handler_saw(case, report):
    """B28: _Fork() runs no handlers: the child must not write into its parent's recording."""
    assert case("fork_without_handlers").stdout == b"child 3\n"
    counts = sorted(calls(p)["cudaLaunchKernel"] for p in report())
    assert counts == [50, 200]
    assert all(p["bad_records"] == p["torn_blocks"] == 0 for p in report())
    assert all(p["state"] == "finished" for p in report())


def test_child_forked_inside_a_call(case, report):
    case("fork_inside_a_call")
    processes = report()
    assert [calls(p)["cudaLaunchKernel"] for p in processes] == [20, 20]
    # The call inside which it was forked belongs to the parent, which made it.
    assert sorted(p["calls"] for p in processes) == [20, 21]


def test_clearing_up_opens_no_recording(case, tmp_path):
    """A forked child that only frees what its parent had makes no file."""
    case("children_that_free")
    assert len(list((tmp_path / "out").glob("*.gpubusy"))) == 1


def test_message_does_not_go_to_what_replaced_stderr(case):
    """A18: the output cannot be written, and number 2 is a pipe without a reader or writer."""
    assert case("closed_stderr", output="/proc/none").stdout == b"alive\n"


def traces_of(directory, count, seconds=120):
    """The traces there, once there are so many and no exporter is at work. An exporter runs when nothing
    else wants the processor: on a busy machine that may take a while."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        traces = sorted(directory.glob("*.pt.trace.json.gz"))
        working = [p for p in directory.iterdir() if p.name.startswith(".")]
        if len(traces) >= count and not working:
            break
        time.sleep(0.2)
    time.sleep(1)  # one too many would come now
    return sorted(directory.glob("*.pt.trace.json.gz"))


def test_short_windows_get_traces_while_the_program_runs(cases, case, tmp_path):
    """B24: each new window put the last one's trace off; the program ends without a word."""
    settings = {"GPUBUSY_STEP": "call:cudaDeviceSynchronize", "GPUBUSY_WAIT": "1",
                "GPUBUSY_WARMUP": "0", "GPUBUSY_ACTIVE": "1", "GPUBUSY_EXPORT": "1"}
    case("short_windows", GPUBUSY_REPEAT="5", **settings)
    traces = traces_of(tmp_path / "out", 5, 10)
    if len(traces) < 5:
        # The exporter, which gives way to all others, was not done within the program's second. A longer
        # one with windows to its end: were they put off, there would be no trace at all.
        case("short_windows", GPUBUSY_REPEAT="0", CASE_STEPS="700", output=tmp_path / "longer", **settings)
        assert len(traces_of(tmp_path / "longer", 5)) >= 5
    assert len(traces) <= 5


def test_empty_window_has_no_trace(case, tmp_path):
    """B24: ten steps, and the third window opens just before the end."""
    case("change_directory", GPUBUSY_STEP="call:cudaLaunchKernel", GPUBUSY_WAIT="1",
         GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="2", GPUBUSY_REPEAT="0", GPUBUSY_EXPORT="1",
         GPUBUSY_DEVICE_TIME="off")
    assert len(traces_of(tmp_path / "out", 3)) == 3


def test_prelude_cut_for_size_and_then_steps(cases, case, tmp_path):
    """The prelude's trace is only wanted where no steps follow."""
    case("late_steps", GPUBUSY_STEP="call:cudaDeviceSynchronize", GPUBUSY_WAIT="1",
         GPUBUSY_WARMUP="0", GPUBUSY_ACTIVE="2", GPUBUSY_REPEAT="1", GPUBUSY_EXPORT="1",
         GPUBUSY_PRELUDE_SIZE="64K")
    assert len(traces_of(tmp_path / "out", 1)) == 1
