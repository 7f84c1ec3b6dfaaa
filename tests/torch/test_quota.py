# SPDX-License-Identifier: Apache-2.0
"""A real quota of processor time (a control group), on the simulated device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from control_group import Group, processor_taken  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "simulator"))
import truth  # noqa: E402

PROGRAM = Path(__file__).with_name("quota.py")
PERIOD_US = 100_000
PERIOD_NS = PERIOD_US * 1000
STEPS = 20  # of which 16 are judged


class Judged:
    """A run under a quota (None: in a group without one), its report, and what truly was."""

    def __init__(self, build_dir, environment, directory, quota_us, cpu_ms=10, *workers,
                 period_us=PERIOD_US, processors=None, wait=2):
        group = Group(quota_us, period_us)
        if group.folder is None:
            pytest.skip("no control group with a quota can be made here")
        directory.mkdir(exist_ok=True)
        self.directory, self.build, self.environment = directory, build_dir, environment
        try:
            run = subprocess.run(
                [build_dir / "bin" / "gpubusy", "-q", "--export", "0", "--wait", str(wait), "--warmup", "1",
                 "--active", "16", "--processes", "command", "-o", directory / "out", "--",
                 build_dir / "bin" / "gpubusy-sim", "--truth", directory / "truth",
                 sys.executable, PROGRAM, group.folder, str(STEPS), str(cpu_ms),
                 directory / "counted", *map(str, workers)],
                env=environment, capture_output=True, text=True, timeout=240,
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: processors and os.sched_setaffinity(0, processors))
        finally:
            group.remove()
        assert run.returncode == 0 and run.stdout.startswith("done "), run.stderr
        self.process = self.of_json("report")
        self.wall_ns = self.process["wall_ms"] * 1e6
        counted = json.loads((directory / "counted").read_text())
        # Behind the optimizer's step of that number; the first is made before the group is entered.
        first = self.process["steps"][0]["step"] - 1
        last = self.process["steps"][-1]["step"]
        begin, end = counted[first], counted[last]
        self.window = (begin["time_ns"], end["time_ns"])
        self.throttled_ns = end["throttled_ns"] - begin["throttled_ns"]
        self.waited_ns = end["waited_ns"] - begin["waited_ns"]

    def of_json(self, command, *options):
        output = subprocess.run(
            [self.build / "bin" / "gpubusy", command, "--json", *options, self.directory / "out"],
            env=self.environment, capture_output=True, text=True, check=True).stdout
        processes = json.loads(output)["processes"]
        if command == "report":
            [processes] = [[p for p in processes if p["calls"]]]
        [process] = processes
        return process

    def idle_ns(self):
        """Of the simulated device, by its own log."""
        [log] = truth.load_directory(self.directory / "truth")
        busy = truth.busy_intervals(log.operations, device=0, kinds=("kernel", "memcpy", "memset"),
                                    window=self.window)
        return self.window[1] - self.window[0] - truth.total_ns(busy)

    def problems(self):
        return [f for f in self.process["findings"] if f["problem"]]

    def finding(self, name):
        [finding] = [f for f in self.process["findings"] if f["id"] == name] or [None]
        return finding

    def what_if(self, change):
        process = self.of_json("whatif", "--change", change)
        [prediction] = process["predictions"]
        return process["step_ms"], prediction


@pytest.fixture
def judged(build_dir, clean_environment, tmp_path):
    def judged(quota_us, *more, name="run", **options):
        return Judged(build_dir, clean_environment, tmp_path / name, quota_us, *more, **options)

    return judged


@pytest.mark.parametrize("taken", [0, 1], ids=["as_it_is", "with_a_busy_processor"])
def test_a_quota_that_is_used_up_is_named(judged, taken):
    with processor_taken(taken):
        run = judged(4_000, 4)
    quota = run.process["host_counters"]["quota"]
    assert 0 < quota["throttled_periods"] <= quota["periods"], (quota, run.throttled_ns)
    first = run.finding("cpu_quota")
    assert f"in {quota['throttled_periods']} of {quota['periods']} periods" in first["evidence"]
    assert "prepare" in first["evidence"] and "limits.cpu" in first["cure"]
    # The thread stood still for no longer than it waited and the group was throttled, and most of that is
    # found. The program counts behind the edges of steps: a period at each end may be on the other side.
    cost = first["total_ms"] * 1e6
    stopped = min(run.throttled_ns, run.waited_ns)
    # A machine that is taken ten times over makes it wait more than the quota does.
    if stopped > 0.6 * run.wall_ns:
        assert run.problems()[0] is first, run.problems()
    assert cost <= min(run.throttled_ns + 2 * PERIOD_NS, run.wall_ns), (cost, run.throttled_ns)
    assert cost <= run.idle_ns() + 2 * PERIOD_NS
    # What the simulated device copies while the host stands still takes as long: it is busy then.
    busy = run.window[1] - run.window[0] - run.idle_ns()
    assert cost >= 0.75 * (stopped - busy) - 2 * PERIOD_NS, (cost, stopped, busy)
    shares = {part["part"]: part["share"] for part in run.process["division"]["parts"]}
    assert shares["cpu_quota"] == pytest.approx(first["share"], abs=0.02)


def test_a_group_that_is_entered_while_the_helper_runs(judged):
    """Then its counters are read, not those of the group in which the process was before."""
    run = judged(4_000, 4, wait=0)
    assert run.throttled_ns > 0
    assert run.process["host_counters"]["quota"]["throttled_periods"] > 0
    assert run.finding("cpu_quota") is not None


@pytest.mark.parametrize("quota", [None, 10 * PERIOD_US], ids=["none", "never_used_up"])
def test_without_throttling_there_is_no_such_finding(judged, quota):
    """Whoever else takes the processors."""
    with processor_taken(2):
        run = judged(quota)
    assert run.throttled_ns == 0
    assert run.finding("cpu_quota") is None
    shares = {part["part"] for part in run.process["division"]["parts"] if part["share"] > 0}
    assert "cpu_quota" not in shares
    assert run.process["host_counters"]["quota"]["throttled_periods"] in (0, None)


def test_workers_that_the_quota_stops(judged):
    """The training process waits for them for most of the time."""
    run = judged(12_000, 30, 2)
    finding = run.problems()[0]
    assert finding["id"] == "data_starvation", run.problems()
    workers = run.process["workers_in_gaps"]
    assert workers["bottleneck"] == "cpu_quota", workers
    assert workers["quota_share"] <= workers["ready_share"]
    assert workers["doing"]["cpu_quota"] > workers["doing"]["no_processor"], workers
    assert "wait for the CPU quota" in finding["evidence"]
    assert "the quota allows" in finding["cure"]
    # Each was stopped for no longer than the group was throttled.
    assert workers["quota_share"] * run.wall_ns <= run.throttled_ns + 2 * PERIOD_NS
    assert finding["gain"]["change"] == "quota"


def test_what_it_would_take_without_the_quota(judged):
    """Predicted, and in a run without it. On one processor, so that what the group was throttled for is what
    its thread was; what others had of that processor is taken off both, as the kernel counted it."""
    one = {min(os.sched_getaffinity(0))}
    stopped = judged(3_000, 20, period_us=10_000, processors=one)
    free = judged(None, 20, name="free", processors=one)
    now_ms, prediction = stopped.what_if("quota")
    assert stopped.finding("cpu_quota")["gain"]["change"] == "quota"
    assert stopped.finding("cpu_quota")["gain"]["step_ms"] == pytest.approx(prediction["step_ms"])
    for_others = (stopped.waited_ns - stopped.throttled_ns) / len(stopped.process["steps"]) / 1e6
    predicted = prediction["step_ms"] - max(for_others, 0)
    free_ms, unchanged = free.what_if("quota")
    assert (unchanged["touched"], unchanged["step_ms"]) == ([0], pytest.approx(free_ms))
    really = free_ms - free.waited_ns / len(free.process["steps"]) / 1e6
    assert now_ms > 2 * really, (now_ms, really)
    assert predicted == pytest.approx(really, rel=0.15)
