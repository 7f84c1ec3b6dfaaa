# SPDX-License-Identifier: Apache-2.0
"""What others read out of our traces is what is in them: HTA, Perfetto, torch's validator."""

import contextlib
import gzip
import io
import json
import logging
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest

SCENARIOS = ["starved", "everything", "ranges", "launches", "ranks", "golden"]


def load(path: Path) -> dict:
    def refuse(constant):
        raise ValueError(f"{constant} is not JSON")

    return json.loads(gzip.decompress(path.read_bytes()).decode("utf-8"), parse_constant=refuse)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_strict_json_in_utf8(traces, scenario):
    for path in traces(scenario):
        trace = load(path)
        assert trace["traceEvents"]
        assert list(trace)[-1] == "traceName"
        for event in trace["traceEvents"]:
            assert "name" in event
            if event["ph"] == "X":
                assert event["dur"] >= 0 and event["ts"] >= 0 and event["cat"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_torch_validator(traces, scenario):
    validator = pytest.importorskip("torch.profiler._trace_validator")
    for path in traces(scenario):
        passed, violations = validator.validate_trace(str(path))
        assert passed, [str(v) for v in violations]


# ---- Perfetto ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_perfetto_drops_nothing(traces, perfetto, scenario):
    for path in traces(scenario):
        events = load(path)["traceEvents"]
        slices = sum(e["ph"] == "X" for e in events)
        instants = sum(e["ph"] == "i" for e in events)
        arrows = sum(e["ph"] == "s" for e in events)
        counted, flows, problems = perfetto(
            path,
            "select count(*) from slice",
            "select count(*) from flow",
            "select name, value from stats where value != 0 and severity in ('error', 'data_loss')",
        )
        assert problems == []
        assert counted == [[slices + instants]]
        assert flows == [[arrows]]


def test_perfetto_sees_times_to_the_ns(traces, perfetto):
    (path,) = traces("everything")
    (rows,) = perfetto(
        path, "select dur from slice where name like 'quote%' order by ts"
    )
    assert rows == [[377_000]] * 4


def test_perfetto_links_launches_to_kernels(traces, perfetto):
    (path,) = traces("starved")
    (rows,) = perfetto(
        path,
        "select a.name, b.name, count(*) from flow join slice a on a.id = slice_out "
        "join slice b on b.id = slice_in group by 1, 2 order by 3",
    )
    assert rows == [
        ["cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 20],
        ["cudaLaunchKernel", "relu_kernel", 80],
        ["cudaLaunchKernel", "void cutlass::Kernel<gemm>(gemm)", 240],
    ]


def test_perfetto_nests_frames_round_calls(traces, perfetto):
    """Python's functions stand round the calls made in them, inside of the step."""
    (path,) = traces("starved")
    (rows,) = perfetto(
        path,
        "select s.depth, p.name, count(*) from slice s join slice p on p.id = s.parent_id "
        "where s.category in ('cuda_runtime', 'cuda_driver') group by 1, 2 order by 2",
    )
    assert rows == [
        [3, "/home/user/job/train.py(58): main", 20],
        [3, "/home/user/job/train.py(60): main", 240],
        [4, "torch/optim/sgd.py(80): SGD.step", 80],
    ]
    events = load(path)["traceEvents"]
    python = [e for e in events if e.get("cat") == "python_function"]
    ids = {e["args"]["Python id"] for e in python}
    assert len(ids) == len(python) > 0
    assert all(e["args"]["Python parent id"] in ids | {None} for e in python)


# ---- HTA -----------------------------------------------------------------------------------------


def hta(paths: list[Path], folder: Path):
    """HTA on copies of the traces: it writes beside what it reads."""
    module = pytest.importorskip("hta.trace_analysis")
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    files = {}
    for rank, path in enumerate(paths):
        files[rank] = str(shutil.copy(path, folder))
    with contextlib.redirect_stdout(io.StringIO()):
        return module.TraceAnalysis(trace_files=files, trace_dir=str(folder))


def test_hta_agrees_on_busy_and_idle(traces, tmp_path):
    analysis = hta(traces("starved"), tmp_path)
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    # HTA leaves out the last step. It starts at the first device work: 19 copies of 1.9 ms and
    # 19 x 16 kernels of 0.5 ms, idle between.
    assert row["compute_time(us)"] == pytest.approx(19 * 8000)
    assert row["non_compute_time(us)"] == pytest.approx(19 * 1900)
    assert row["idle_time(us)"] == pytest.approx(18 * 23_000 + 19 * 100)
    idle = analysis.get_idle_time_breakdown(visualize=False, show_idle_interval_stats=False)[0]
    waits = dict(zip(idle["idle_category"], idle["idle_time"]))
    assert waits["host_wait"] == pytest.approx(18 * 23_000)


def test_hta_divides_a_rank_as_we_do(build_dir, tmp_path):
    """A real trace of one of 16 ranks (tests/traces): compute, all else, idle, and what of the
    communication compute hides. HTA works in whole us."""
    path = Path(__file__).parents[1] / "traces" / "hta_cudagraph_rank0.1.pt.trace.json.gz"
    analysis = hta([path], tmp_path)
    run = subprocess.run([build_dir / "bin" / "gpubusy", "report", path, "--json"],
                         capture_output=True, timeout=120, check=True)
    process, = json.loads(run.stdout)["processes"]
    rows = {row["part"]: row for row in process["division"]["parts"]}
    us = {part: row["total_ns"] / 1000 for part, row in rows.items()}
    busy = sum(us[part] for part in us if rows[part]["busy"])
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    assert us["compute"] == pytest.approx(times["compute_time(us)"], rel=0.005)
    assert busy - us["compute"] == pytest.approx(times["non_compute_time(us)"], rel=0.005)
    hidden = rows["communication"]["hidden_ns"] / 1000
    overlap = analysis.get_comm_comp_overlap(visualize=False).iloc[0]["comp_comm_overlap_pctg"]
    assert overlap > 1
    assert 100 * hidden / (hidden + us["communication"]) == pytest.approx(overlap, abs=0.02)


def test_hta_launches_queue_and_kernels(traces, tmp_path):
    analysis = hta(traces("launches"), tmp_path)
    stats = analysis.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)[0]
    assert len(stats) == 9 * 1200
    assert stats["gpu_duration"].mean() == pytest.approx(6)
    assert stats["cpu_duration"].mean() == pytest.approx(6)
    queue = analysis.get_queue_length_summary(ranks=[0])
    assert queue.loc[(0, 7)][("queue_length", "min")] == 0  # a doubled correlation makes it negative
    assert queue.loc[(0, 7)][("queue_length", "max")] == 1
    kinds, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, include_memory_kernels=True
    )
    assert kinds["sum"].sum() == pytest.approx(9 * 1200 * 6)
    assert list(kernels["name"]) == ["small_kernel"]


def test_hta_copies_have_bandwidth(traces, tmp_path):
    analysis = hta(traces("starved"), tmp_path)
    bandwidth = analysis.get_memory_bw_summary(ranks=[0])
    assert bandwidth.loc[(0, "Memcpy HtoD")][("memory_bw_gbps", "mean")] == pytest.approx(
        8_000_000 / 1_900_000, rel=1e-4
    )


def test_hta_bears_everything(traces, tmp_path):
    analysis = hta(traces("everything"), tmp_path)
    assert len(analysis.get_profiler_steps()) == 3
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_cuda_kernel_launch_stats(ranks=analysis.t.get_ranks(), visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)


def test_hta_takes_ranks_from_the_files(traces, tmp_path):
    module = pytest.importorskip("hta.trace_analysis")
    for path in traces("ranks"):
        shutil.copy(path, tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        analysis = module.TraceAnalysis(trace_dir=str(tmp_path))
    assert sorted(analysis.t.get_ranks()) == [0, 1]


def test_hta_critical_path(traces, tmp_path):
    analysis = hta(traces("starved"), tmp_path)
    with contextlib.redirect_stdout(io.StringIO()):
        graph, found = analysis.critical_path_analysis(
            rank=0, annotation="ProfilerStep", instance_id=1
        )
        assert found
        assert not graph.summary().empty
