# SPDX-License-Identifier: Apache-2.0
"""`gpubusy compare` and `report --markdown`, as a CI job uses them."""

import json
import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def scenario(build_dir, tmp_path):
    """Writes recordings (and traces) of a made-up run; returns their directory."""

    def scenario(name, *what):
        directory = tmp_path / name
        directory.mkdir()
        result = subprocess.run(
            [str(build_dir / "bin" / "gpubusy_scenario"), name, str(directory), *what],
            capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        return directory

    return scenario


def test_conditions_decide_the_exit_status(gpubusy, run, scenario):
    slow, fast = scenario("starved", "recording"), scenario("launches", "recording")
    assert run([gpubusy, "compare", slow, fast]).returncode == 0
    worse = run([gpubusy, "compare", slow, fast, "--fail-if", "step_time>5%"])
    assert worse.returncode == 3 and "step_time>5%: HOLDS" in worse.stdout
    better = run([gpubusy, "compare", fast, slow, "--fail-if=step_time>5%"])
    assert better.returncode == 0 and "step_time>5%: no" in better.stdout
    same = run([gpubusy, "compare", slow, slow, "--fail-if", "step_time>0%", "--strict"])
    assert same.returncode == 0, same.stdout
    one_of_two = run([gpubusy, "compare", slow, fast, "--fail-if", "idle<-1000ms",
                      "--fail-if", "kernels > 10"])
    assert one_of_two.returncode == 3


def test_bad_conditions_are_refused(gpubusy, run, scenario):
    slow = scenario("starved", "recording")
    result = run([gpubusy, "compare", slow, slow, "--fail-if", "speed>5%"])
    assert result.returncode == 125
    assert "no metric 'speed'" in result.stderr and "step_time" in result.stderr
    assert result.stderr.count("\n") == 1
    assert run([gpubusy, "compare", slow, slow, "--fail-if"]).returncode == 125
    assert run([gpubusy, "report", slow, "--fail-if", "idle>1ms"]).returncode == 125
    assert run([gpubusy, "compare", slow, slow, "--json", "--markdown"]).returncode == 125


def test_json_holds_every_rank(gpubusy, run, scenario):
    ranks = scenario("ranks", "recording")
    document = json.loads(run([gpubusy, "compare", "--json", ranks, ranks]).stdout)
    assert document["schema"] == 1 and document["failed"] is False
    assert [pair["after"]["rank"] for pair in document["pairs"]] == [0, 1]
    step = document["pairs"][1]["metrics"]["step_time"]
    assert abs(step["before"] - 33) < 1e-6 and step["change"] == 0 and step["within_noise"]


def test_traces_are_taken_as_well(gpubusy, run, scenario, tmp_path):
    recorded = scenario("starved")
    trace = next(recorded.glob("*.pt.trace.json.gz"))
    document = json.loads(run([gpubusy, "compare", "--json", recorded, trace]).stdout)
    pair = document["pairs"][0]
    assert (pair["before"]["source"], pair["after"]["source"]) == ("recording", "trace")
    assert abs(pair["metrics"]["step_time"]["change"]) < 1e-3
    assert abs(pair["metrics"]["busy"]["change"]) < 1e-3
    (tmp_path / "broken.json").write_text('{"traceEvents": [')
    result = run([gpubusy, "compare", recorded, "broken.json"])
    assert result.returncode == 1 and "broken.json" in result.stderr


def test_markdown(gpubusy, run, scenario):
    starved, everything = scenario("starved", "recording"), scenario("everything", "recording")
    report = run([gpubusy, "report", "--markdown", starved]).stdout
    assert "**GPU busy 28.9 %**" in report and "| busy |" in report
    assert "1. **The GPU waits for input data**" in report
    assert run([gpubusy, "report", "--markdown", everything]).returncode == 0
    compared = run([gpubusy, "compare", "--markdown", starved, starved]).stdout
    assert "| step (mean) | 33.0 ms | 33.0 ms | none |" in compared


def test_several_runs_of_each_side(gpubusy, run, scenario, tmp_path):
    slow, fast = scenario("starved", "recording"), scenario("launches", "recording")
    sides = tmp_path / "before", tmp_path / "after"
    for side, source in zip(sides, (slow, fast)):
        for i in range(3):
            (side / f"run{i}").mkdir(parents=True)
            recording = next(source.iterdir())
            (side / f"run{i}" / recording.name).write_bytes(recording.read_bytes())
    spelled = [gpubusy, "compare", "--json", *sorted(sides[0].iterdir()), "--", *sorted(sides[1].iterdir())]
    document = json.loads(run(spelled).stdout)
    (pair,) = document["pairs"]
    assert pair["noise_from"] == "runs"
    assert len(document["before_runs"]) == len(document["after_runs"]) == 3
    step = pair["metrics"]["step_time"]
    assert len(step["before_by_run"]) == 3 and step["within_noise"] is False
    # As directories of runs; and options may stand behind.
    again = json.loads(run([gpubusy, "compare", sides[0], "--", sides[1], "--json"]).stdout)
    assert again["pairs"] == document["pairs"]
    text = run([gpubusy, "compare", *sides, "--fail-if", "step_time>5%"])
    assert text.returncode == 3
    assert "3 runs of 20 steps before, 3 runs of 10 steps after" in text.stdout
    assert "Judged by one run each" not in text.stdout
    single = run([gpubusy, "compare", slow, fast, "--fail-if", "step_time>5%"])
    assert "Judged by one run each" in single.stdout
    for wrong in (["compare", slow, fast, slow], ["compare", slow, "--"], ["compare", "--", slow]):
        refused = run([gpubusy, *wrong])
        assert refused.returncode == 125 and refused.stderr.count("\n") == 1
    assert run([gpubusy, "compare", "--", slow, fast]).returncode == 0


def test_nothing_to_compare_is_an_error(gpubusy, run, scenario, tmp_path):
    slow = scenario("starved", "recording")
    (tmp_path / "empty.json").write_text('{"traceEvents": []}')
    for sides in ((slow, "empty.json"), ("empty.json", slow)):
        result = run([gpubusy, "compare", *sides])
        assert result.returncode == 1 and result.stdout == ""
        assert result.stderr == ("gpubusy: nothing to compare in 'empty.json': it has no step and no "
                                 "work of a device\n")


def test_other_programs_and_devices_are_told(gpubusy, run, scenario):
    everything = scenario("everything", "recording")
    text = run([gpubusy, "compare", scenario("starved", "recording"), everything]).stdout
    assert "Different" in text, text


def test_traces_of_an_imported_trace_bear_its_name(gpubusy, run, tmp_path):
    source = Path(__file__).parents[1] / "traces" / "kineto_resnet50_nw0.1623143089861.pt.trace.json.gz"
    result = run([gpubusy, "export", source, "-o", tmp_path])
    assert result.returncode == 0, result.stderr
    (written,) = result.stdout.split()
    assert Path(written).name.startswith("kineto_resnet50_nw0.")
    assert Path(written).name.endswith(".pt.trace.json.gz")
