# SPDX-License-Identifier: Apache-2.0
"""examples/train.py on the simulated device: starved is starved, cured is not, both are unchanged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision")

TRAIN = Path(__file__).resolve().parents[2] / "examples" / "train.py"
STARVED = ["--workers", "0", "--slow-transforms"]
CURED = ["--workers", "2", "--fast-transforms", "--pin-memory"]


@pytest.fixture
def train(build_dir, clean_environment, tmp_path):
    def train(options, *launcher):
        simulator = build_dir / "bin" / "gpubusy-sim"
        assert simulator.exists(), f"{simulator} is not built"
        return subprocess.run(
            [str(word) for word in (simulator, *launcher, sys.executable, TRAIN, *options)],
            env=clean_environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
        )

    return train


def verdict(build_dir, directory):
    text = subprocess.run([build_dir / "bin" / "gpubusy", "report", "--json", directory],
                          check=True, capture_output=True, text=True).stdout
    (process,) = json.loads(text)["processes"]
    return process


@pytest.mark.parametrize("name,options", [("starved", STARVED), ("cured", CURED)])
def test_verdict(train, build_dir, tmp_path, name, options):
    launcher = [build_dir / "bin" / "gpubusy", "-o", tmp_path / "out", "--"]
    result = train([*options, "--steps", "30"], *launcher)
    assert result.returncode == 0, result.stderr
    process = verdict(build_dir, tmp_path / "out")
    assert len(process["steps"]) == 20
    waiting = process["idle_ms"]["step_start"] / process["wall_ms"]
    problems = [finding["id"] for finding in process["findings"] if finding["problem"]]
    if name == "starved":
        assert waiting >= 0.5
        assert problems[0] == "data_starvation"
        assert "train.py" in process["findings"][0]["where"]
    else:
        assert waiting <= 0.10
        assert "data_starvation" not in problems
    assert len(list((tmp_path / "out").glob("*.pt.trace.json.gz"))) == 1


def test_same_output_with_and_without(train, build_dir, tmp_path):
    options = [*CURED, "--steps", "20", "--pictures", "16"]
    plain = train(options)
    ours = train(options, build_dir / "bin" / "gpubusy", "-q", "-o", tmp_path / "out", "--")
    assert (plain.returncode, plain.stdout, plain.stderr) == (
        ours.returncode, ours.stdout, ours.stderr)
    assert plain.stdout.splitlines()[0].startswith("training on cuda, 20 steps")
