# SPDX-License-Identifier: Apache-2.0
"""`gpubusy compare` and `report --markdown`, as a CI job uses them."""

import json
import subprocess

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
