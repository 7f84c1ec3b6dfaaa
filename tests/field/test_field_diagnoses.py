# SPDX-License-Identifier: Apache-2.0
"""Field cases D01 to D11: what a verdict must say of trainings that were slow for a known reason, and
must not say of their controls. Real PyTorch on the simulated device (torch_diagnoses.py, torch_ranks.py);
numbers are held against what the device's log and the program's own clock say of the same run.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from conftest import Directory, truth  # noqa: E402

HERE = Path(__file__).parent
SCHEDULE = ["--wait", "4", "--warmup", "1", "--active", "1000", "--no-export"]


def line_of(program, mark):
    (number,) = [n for n, text in enumerate((HERE / program).read_text().splitlines(), 1)
                 if re.search(rf"  # {mark}$", text)]
    return number


def environment():
    return {k: v for k, v in os.environ.items()
            if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"}


def command(build_dir, place, program, *arguments):
    (place / "truth").mkdir()
    return [str(word) for word in (
        build_dir / "bin" / "gpubusy", "-q", "-o", place / "out", *SCHEDULE, "--",
        build_dir / "bin" / "gpubusy-sim", "--set", "context_ms=1", "--truth", place / "truth",
        sys.executable, HERE / program, place, *arguments)]


class Case:
    """A program's verdict, what the device did, and the program's own clock."""

    def __init__(self, process, log, told, recording):
        self.recording = recording
        self.process, self.log, self.edges, self.marks = process, log, told["edges"], told["marks"]
        steps = [step["step"] for step in process["steps"]]
        self.span = self.edges[steps[0] - 1], self.edges[steps[-1]]
        self.steps = len(steps)

    @property
    def problems(self):
        return [f for f in self.process["findings"] if f["problem"]]

    def finding(self, name):
        (found,) = [f for f in self.process["findings"] if f["id"] == name] or [None]
        assert found, self.ids()
        return found

    def ids(self):
        return [(f["id"], f["share"], f["where"]) for f in self.process["findings"]]

    def busy_ms(self):
        return truth.total_ns(truth.busy_intervals(self.log.operations, window=self.span)) / 1e6

    def wall_ms(self):
        return (self.span[1] - self.span[0]) / 1e6

    def idle_ms(self):
        return self.wall_ms() - self.busy_ms()

    def calls(self, name):
        return [c for c in self.log.calls
                if c.name == name and self.span[0] <= c.start_ns < self.span[1]]

    def launched(self, kind):
        """Work of that kind by the call that asked for it in the judged steps."""
        calls = {c.correlation for c in self.log.calls
                 if self.span[0] <= c.start_ns < self.span[1]}
        return [o for o in self.log.operations if o.kind == kind and o.correlation in calls]


@pytest.fixture(scope="module")
def cases(build_dir, tmp_path_factory):
    place = tmp_path_factory.mktemp("diagnoses")
    result = subprocess.run(command(build_dir, place, "torch_diagnoses.py"), env=environment(),
                            capture_output=True, text=True, timeout=300, cwd=place)
    assert result.returncode == 0, result.stderr
    names = dict(line.split() for line in result.stdout.splitlines())
    assert set(names.values()) == {"0"}, result.stdout + result.stderr
    processes = {p["pid"]: p for p in Directory(place / "out", build_dir, environment()).processes}
    logs = {log.pid: log for log in truth.load_directory(place / "truth")}
    told = {name: json.loads((place / f"{name}.json").read_text()) for name in names}
    return {name: Case(processes[t["pid"]], logs[t["pid"]], t, processes[t["pid"]]["recording"])
            for name, t in told.items()}


def numbers(pattern, text):
    found = re.search(pattern, text)
    assert found, text
    return [float(group) for group in found.groups()]


def at_line(finding, mark, program="torch_diagnoses.py"):
    return f"{program}:{line_of(program, mark)} (" in finding["where"]


def assert_blames_only_idle(case):
    """Of a program without a problem: where other programs take the processors the device runs no kernel,
    and the verdict may say so, for as long as that truly was."""
    kernels = truth.busy_intervals(case.log.operations, kinds=("kernel",), window=case.span)
    idle = 1 - truth.total_ns(kernels) / 1e6 / case.wall_ms()
    for finding in case.problems:
        assert idle > 0.02 and finding["share"] <= idle + 0.02, (idle, case.ids())


# ---- D01 -----------------------------------------------------------------------------------------


def test_d01_workers_that_compute(cases):
    """100 steps instead of 200. Two workers of 30 ms for a step of 5: 64 % idle with a processor for
    each, more where they share one."""
    case = cases["workers_compute"]
    idle = case.idle_ms()
    assert idle >= 0.6 * case.wall_ms()
    first = case.problems[0]
    assert first["id"] == "data_starvation", case.ids()
    assert 0.75 * idle <= first["total_ms"] <= 1.02 * idle, (idle, case.ids())
    workers = case.process["workers_in_gaps"]
    assert workers["count"] == 2 and workers["bottleneck"] in ("processor", "no_processor"), workers
    assert workers["lines"][0]["line"]["function"] == "burn"
    assert "the 2 workers were looked at" in first["evidence"]


def test_d01_cheap_workers_are_no_problem(cases):
    case = cases["workers_cheap"]
    assert case.steps == 55
    assert_blames_only_idle(case)
    share = {name: sum(f["share"] for f in cases[name].problems if f["id"] == "data_starvation")
             for name in ("workers_cheap", "workers_compute")}
    assert share["workers_cheap"] < 0.5 * share["workers_compute"], share


# ---- D03 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, mark", [("waits_in_item", "item"), ("waits_in_copy", "copy")])
def test_d03_who_waits_is_not_blamed(cases, name, mark):
    """50 ms of work are queued in each step, then item(), or a copy of 256 KiB of pageable memory: the
    GPU is what takes the time, and the wait is told as a wait for it, with its two parts."""
    case = cases[name]
    assert_blames_only_idle(case)
    busy = case.finding("gpu_busy")
    assert at_line(busy, mark), case.ids()
    call, = re.findall(r"The host waits for it in (\w+) for", busy["evidence"])
    waited, queued = numbers(r"for ([\d.]+) ms per step \(([\d.]+) ms of that for work already "
                             r"queued\): that wait is not the cause", busy["evidence"])
    # Copies within the device do not wait.
    within = {o.correlation for o in case.launched("memcpy") if o.copy_kind == "DtoD"}
    truly = sum(c.end_ns - c.start_ns for c in case.calls(call) if c.correlation not in within)
    truly /= 1e6 * case.steps
    assert waited == pytest.approx(truly, rel=0.05)
    assert 0.9 * waited <= queued <= waited
    assert case.process["busy_ms"] == pytest.approx(case.busy_ms(), rel=0.02)


def test_d03_blame_moves_and_the_work_does_not(cases):
    a, b = (sum(k["total_ms"] for k in cases[name].process["kernels"]) / cases[name].steps
            for name in ("waits_in_item", "waits_in_copy"))
    assert a == pytest.approx(b, rel=0.03)


def test_d03_waits_that_let_the_device_run_dry(cases):
    case = cases["item_all_the_time"]
    first = case.problems[0]
    assert first["id"] == "synchronisation" and at_line(first, "synchronises"), case.ids()
    assert " 20 x cudaStreamSynchronize per step" in first["evidence"]
    assert first["total_ms"] <= case.idle_ms() * 1.02
    assert first["total_ms"] >= 0.5 * case.idle_ms(), (case.idle_ms(), case.ids())


# ---- D04 -----------------------------------------------------------------------------------------


def test_d04_a_thread_that_keeps_the_lock(cases):
    """50 ms of each 200, which the launching thread cannot but wait for; every step waits for the device,
    so that it idles meanwhile."""
    case = cases["gil_kept"]
    finding = case.finding("gil_contention")
    assert finding["problem"] and 45 <= finding["ms_of_step"]["max"], case.ids()
    assert finding["total_ms"] <= case.idle_ms() * 1.02


def test_d04_a_thread_that_lets_go_of_it(cases):
    assert "gil_contention" not in [f["id"] for f in cases["gil_released"].problems]


# ---- D05 -----------------------------------------------------------------------------------------


def test_d05_memory_that_is_full(cases):
    """cudaMalloc takes 1 ms and cudaFree 5; each step asks for more than is left."""
    case = cases["memory_full"]
    first = case.problems[0]
    assert first["id"] == "memory_full" and at_line(first, "allocates"), case.ids()
    asked, freed = case.calls("cudaMalloc"), case.calls("cudaFree")
    failed = [c for c in asked if c.result != 0]
    assert len(failed) >= case.steps - 1 and len(freed) >= len(failed)
    retried, back, anew, host, share = numbers(
        r"^([\d.]+) allocations per step fail and succeed when ([\d.]+) blocks were given back, .*; "
        r"([\d.]+) are allocated anew: ([\d.]+) ms of the host \(([\d.]+) %\)", first["evidence"])
    for told, truly in ((retried, len(failed)), (back, len(freed)),
                        (anew, len(asked) - len(failed))):
        assert told == pytest.approx(truly / case.steps, abs=0.06)
    took = sum(c.end_ns - c.start_ns for c in asked + freed) / 1e6
    assert host == pytest.approx(took / case.steps, rel=0.05)
    assert share == pytest.approx(100 * took / case.wall_ms(), rel=0.1)


def test_d05_an_allocator_that_settles(cases):
    """It allocates behind the first four steps, before the judged ones, and keeps that."""
    case = cases["memory_settles"]
    assert any(c.name == "cudaMalloc" for c in case.log.calls) and not case.calls("cudaMalloc")
    assert not {"memory_full", "allocation_churn"} & {f["id"] for f in case.process["findings"]}


# ---- D06 -----------------------------------------------------------------------------------------


def test_d06_kernels_shorter_than_their_launch(cases):
    """1,200 kernels of 6 us, 40 us of host each, and the optimizer's."""
    case = cases["small_kernels"]
    first = case.problems[0]
    assert first["id"] == "launch_bound" and at_line(first, "launches"), case.ids()
    assert case.process["busy_share"] == pytest.approx(case.busy_ms() / case.wall_ms(), abs=0.01)
    assert case.process["busy_share"] <= 0.15
    launches, gap, kernel = numbers(r"([\d.]+) launches per step: one each ([\d.]+) us \(median\), a "
                                    r"kernel lasts ([\d.]+) us", first["evidence"])
    assert launches == pytest.approx(len(case.launched("kernel")) / case.steps, rel=0.005)
    assert gap >= 40 and kernel == pytest.approx(6, abs=0.2)


def test_d06_the_same_in_a_graph(cases):
    """One launch, 1,172 kernels: each of them is counted, and nothing is launch-bound."""
    case = cases["small_kernels_in_a_graph"]
    assert case.process["graph_launches"] == case.steps
    truly = case.launched("kernel")
    assert sum(o.graph != 0 for o in truly) == 1172 * case.steps
    assert sum(k["count"] for k in case.process["kernels"]) == len(truly)
    assert_blames_only_idle(case)
    assert not any(at_line(f, "launches") for f in case.problems if f["id"] == "launch_bound")
    assert sum(f["share"] for f in case.problems if f["id"] == "launch_bound") < 0.25


# ---- D07 -----------------------------------------------------------------------------------------


def test_d07_storage_that_is_slow_at_first(cases):
    """A pipe that gives a sample each 40 ms for one epoch, then as fast as they are asked for. Called
    late input of workers that wait for it, in the first epoch alone, and not a lack of processors."""
    case = cases["slow_storage"]
    first = case.problems[0]
    assert first["id"] == "data_starvation", case.ids()
    workers = case.process["workers_in_gaps"]
    assert workers["looks"] >= 10 and workers["bottleneck"] == "input", workers
    line = workers["lines"][0]["line"]
    assert line["line"] == line_of("torch_diagnoses.py", "storage"), workers
    assert "wait for input" in first["evidence"] and "takes no processor" in first["cure"]
    late = {step["step"]: sum(ns for part, ns in step["ns"].items()
                              if part in ("loader_workers", "input"))
            for step in case.process["division"]["steps"]}
    slow = sum(ns for step, ns in late.items() if step < 30) / 1e6
    fast = sum(ns for step, ns in late.items() if step > 30) / 1e6  # 30: a worker is started
    truly = 25 * (40 - case.busy_ms() / case.steps)
    assert slow >= 0.7 * truly and fast < 0.25 * slow, (slow, fast, truly)


# ---- D10 -----------------------------------------------------------------------------------------


def test_d10_memory_that_blocks_a_copy(cases):
    """64 MiB a step from malloc's memory, from cudaHostAlloc's, and from malloc's behind cudaHostRegister:
    the first alone is blamed."""
    case = cases["copies"]
    size = 64 << 20
    finding = case.finding("pageable_copies")
    assert at_line(finding, "pageable"), case.ids()
    assert finding["evidence"].startswith("1 HtoD copies per step, 67.1 MB, ")
    rows = {(row["direction"], row["host_memory"]): row for row in case.process["copies"]
            if row["bytes"] >= size}
    assert set(rows) == {("HtoD", "Pageable"), ("HtoD", "Pinned")}
    assert rows["HtoD", "Pageable"]["bytes"] == size * case.steps
    assert rows["HtoD", "Pinned"]["bytes"] == 2 * size * case.steps
    # How long the call held the host, by the device's log; the other two return at once.
    large = {o.correlation: o for o in case.launched("memcpy") if o.bytes == size}
    held = {"pageable": 0, "pinned": 0}
    for call in case.log.calls:
        if call.correlation in large:
            held[large[call.correlation].source] += (call.end_ns - call.start_ns) / 1e6
    for kind, row in (("pageable", rows["HtoD", "Pageable"]), ("pinned", rows["HtoD", "Pinned"])):
        assert row["host_ms"] == pytest.approx(held[kind], rel=0.05, abs=0.5)
    assert finding["total_ms"] <= held["pageable"] * 1.02


# ---- D11 -----------------------------------------------------------------------------------------


def test_d11_what_comes_every_so_many_steps(cases):
    """A checkpoint every 20 steps, a validation every 50: told apart, by rhythm and line, and what a step
    takes without either."""
    case = cases["periodic"]
    found = {name: case.finding(name) for name in ("checkpoint", "evaluation")}
    for name, mark, every in (("checkpoint", "saves", 20), ("evaluation", "validates", 50)):
        finding = found[name]
        assert f"every {every} steps" in finding["evidence"], finding
        without, = numbers(r"Without that a step takes ([\d.]+) ms \(mean\)", finding["evidence"])
        process = case.process
        assert without == pytest.approx(
            (process["wall_ms"] - finding["total_ms"]) / case.steps, abs=0.01)
        # All of its own time but that in which the device still works on what was asked before.
        own = [(b, e) for what, b, e in case.marks if what == mark and case.span[0] <= b < case.span[1]]
        busy = sum(truth.total_ns(truth.busy_intervals(case.log.operations, window=i)) for i in own)
        truly = (sum(e - b for b, e in own) - busy) / 1e6
        assert finding["total_ms"] == pytest.approx(truly, rel=0.15), (name, truly, case.ids())
    assert at_line(found["checkpoint"], "saves")
    assert "in validate" in found["evaluation"]["where"] or at_line(found["evaluation"], "validates")


def test_t09_validation_is_labelled(cases, build_dir):
    """By phase, the validations' forward passes are told from the training's: 5 of 2 layers each time."""
    case = cases["periodic"]
    validations = [b for what, b, _ in case.marks
                   if what == "validates" and case.span[0] <= b < case.span[1]]
    report = subprocess.run(
        [build_dir / "bin" / "gpubusy", "report", "--json", "--by", "phase", "--top", "100",
         case.recording],
        env=environment(), capture_output=True, check=True, timeout=120)
    (process,) = json.loads(report.stdout)["processes"]
    launches = {row["name"]: row["launches"] for row in process["rows"]}
    assert len(validations) == 3
    assert launches["evaluation (a guess)"] == 5 * 2 * len(validations)
    assert launches["forward"] == 2 * case.steps
    assert case.process["steps_seen"] == len(case.edges)


# ---- D08, D09: several ranks ---------------------------------------------------------------------


def run_ranks(build_dir, place, ranks, program):
    result = subprocess.run(command(build_dir, place, "torch_ranks.py", ranks, program),
                            env=environment(), capture_output=True, text=True, timeout=200, cwd=place)
    assert (result.returncode, result.stdout) == (0, f"{[0] * ranks}\n"), result.stderr
    return Directory(place / "out", build_dir, environment()).processes


def problem(process, name):
    return next((f for f in process["findings"] if f["id"] == name and f["problem"]), None)


def test_d08_collections_by_turns(build_dir, tmp_path):
    """Two ranks with a million containers (the case has three), each collecting every 20 steps, half a
    period after the other: each is told of its own collections, and for whom it waits meanwhile."""
    processes = run_ranks(build_dir, tmp_path, 2, "collections")
    assert [p["rank"] for p in processes] == [0, 1]
    collects, reduces = (line_of("torch_ranks.py", mark) for mark in ("collects", "reduces"))
    told = {p["rank"]: json.loads((tmp_path / f"rank{p['rank']}.json").read_text()) for p in processes}
    for process in processes:
        rank, other = process["rank"], 1 - process["rank"]
        edges = told[rank]["edges"]
        begin, end = (edges[process["steps"][i]["step"] - j] for i, j in ((0, 1), (-1, 0)))

        def in_span(whose):
            return [(b, e) for b, e in told[whose]["collections"] if begin <= b < end]

        own = problem(process, "garbage_collection")
        assert own and f"torch_ranks.py:{collects} (" in own["where"], process["findings"]
        assert own["total_ms"] == pytest.approx(
            sum(e - b for b, e in in_span(rank)) / 1e6, rel=0.15)
        assert own["steps"] >= len(in_span(rank))
        waits = problem(process, "collective_wait")
        assert waits and f"torch_ranks.py:{reduces} (" in waits["where"], process["findings"]
        count, late, why = re.search(
            rf"In (\d+) steps rank {other} comes last: ([\d.]+) ms of the waiting are for it, which has "
            r"meanwhile: (\w+)", waits["evidence"]).groups()
        assert why == "garbage_collection"
        # Where a processor is missing as well, a part of the wait has that name.
        assert 0.4 <= float(late) / (sum(e - b for b, e in in_span(other)) / 1e6) <= 1.1
        assert int(count) >= len(in_span(other)) >= 2


def test_d08_a_heap_that_is_frozen(build_dir, tmp_path):
    for process in run_ranks(build_dir, tmp_path, 2, "frozen"):
        assert problem(process, "garbage_collection") is None, process["findings"]
        assert "garbage_collection" not in str([f["evidence"] for f in process["findings"]])


def test_d09_which_rank_did_not_come(build_dir, tmp_path):
    """Four ranks, one of which does not come to its 50th all-reduce. Asked while they hang, the report
    says who is in it and where the other is; then the program goes on as if nobody had asked."""
    program = subprocess.Popen(command(build_dir, tmp_path, "torch_ranks.py", 4, "hang"),
                               env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True, cwd=tmp_path)
    hangs, reduces = (line_of("torch_ranks.py", mark) for mark in ("hangs", "reduces"))
    try:
        deadline = time.monotonic() + 120
        told = {}
        while len(told) < 4 and time.monotonic() < deadline and program.poll() is None:
            time.sleep(1)
            if not (tmp_path / "hangs").exists():
                continue
            processes = Directory(tmp_path / "out", build_dir, environment()).processes
            told = {p["rank"]: [w for w in p["warnings"] if "asks nothing of the GPU" in w]
                    for p in processes}
            told = {rank: said for rank, said in told.items() if said}
    finally:
        (tmp_path / "go").touch()
        out, err = program.communicate(timeout=100)
    assert (program.returncode, out) == (0, "[0, 0, 0, 0]\n"), err
    assert sorted(told) == [0, 1, 2, 3]
    for rank, (said,) in told.items():
        assert "behind 49 steps" in said
        assert "In a collective: ranks 0, 1 and 3; not there: rank 2 at torch_ranks.py:" in said
        assert f"not there: rank 2 at torch_ranks.py:{hangs} (" in said
        at, = re.findall(r"steps, at torch_ranks\.py:(\d+) ", said)
        assert int(at) == (hangs if rank == 2 else reduces)
    for process in processes:
        assert "gpu_busy" not in [f["id"] for f in process["findings"]]
