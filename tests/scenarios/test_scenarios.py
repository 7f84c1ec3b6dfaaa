# SPDX-License-Identifier: Apache-2.0
"""Every example under the launcher on the simulated device: the verdict names the mistake first, with
its line and what it truly cost; without the mistake it does not.
"""

import statistics

import pytest

pytest.importorskip("torch")

from expected import SCENARIOS  # noqa: E402
from harness import Run, marked_lines  # noqa: E402
from whatif_pairs import CHANGES, Pair  # noqa: E402

# Of what the mistake truly cost, and of the judged time: a share too small to see is no error.
TOLERANCE, LEAST = 0.05, 0.005


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Where runs are kept: each form of an example runs once for all tests."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def run(build_dir, clean_environment, runs):
    def run(scenario, cured):
        directory = runs / (scenario.example + ("-cured" if cured else ""))
        return Run(build_dir, directory, scenario, cured, clean_environment)

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


# Machines of 2 processors that others use, too: the runs themselves differ by some percent.
LARGEST, MEDIAN = 0.2, 0.05


def test_what_if_against_the_cure(build_dir, clean_environment, runs):
    """Predicted from the run with the mistake, against the cured one that really ran."""
    pairs = [Pair(build_dir, runs, example, clean_environment) for example in CHANGES]
    told = "\n".join(pair.row() for pair in pairs)
    assert all(all(pair.touched) for pair in pairs), [p.touched for p in pairs]
    errors = [abs(pair.error) for pair in pairs]
    assert statistics.median(errors) <= MEDIAN, told
    assert max(errors) <= LARGEST, told
    assert all(pair.low <= pair.predicted <= pair.high for pair in pairs), told
