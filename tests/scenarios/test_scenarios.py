# SPDX-License-Identifier: Apache-2.0
"""Every example under the launcher on the simulated device: the verdict names the mistake first, with
its line and what it truly cost; without the mistake it does not.
"""

import pytest

pytest.importorskip("torch")

from expected import SCENARIOS  # noqa: E402
from harness import Run, marked_lines  # noqa: E402

# Of what the mistake truly cost, and of the judged time: a share too small to see is no error.
TOLERANCE, LEAST = 0.05, 0.005


@pytest.fixture
def run(build_dir, clean_environment, tmp_path):
    def run(scenario, cured):
        return Run(build_dir, tmp_path / "run", scenario, cured, clean_environment)

    return run


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.example)
def test_mistake_is_named(run, scenario):
    ran = run(scenario, cured=False)
    assert len(ran.process["steps"]) == 16
    assert ran.problems, ran.summary()
    first = ran.problems[0]
    assert first["id"] == scenario.finding, ran.summary()
    assert ran.names_mistake(first), (first["where"], marked_lines(scenario.example))
    least_ms, most_ms = ran.least_cost_ns() / 1e6, ran.most_cost_ns() / 1e6
    error_ms = max(TOLERANCE * most_ms, LEAST * ran.process["wall_ms"])
    assert least_ms - error_ms <= first["total_ms"] <= most_ms + error_ms, (
        least_ms, most_ms, ran.summary())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.example)
def test_cure_is_not_blamed(run, scenario):
    ran = run(scenario, cured=True)
    assert scenario.finding not in [f["id"] for f in ran.problems], ran.summary()
    assert ran.process["mean_step_ms"] > 0
