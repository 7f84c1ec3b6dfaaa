# SPDX-License-Identifier: Apache-2.0
"""Every example under the launcher on the simulated device: the verdict names the mistake first, with
its line and what it truly cost; without the mistake it does not.
"""

import json
import statistics

import pytest

pytest.importorskip("torch")

from expected import BY_NAME, SCENARIOS  # noqa: E402
from harness import Run, marked_lines  # noqa: E402
from whatif_pairs import CHANGES, Pair  # noqa: E402

# Of what the mistake truly cost, and of the judged time: a share too small to see is no error.
TOLERANCE, LEAST = 0.05, 0.005


def beside_ns(ran):
    return sum(ran.parts().get(part, 0) for part in ran.scenario.beside)


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
    beside_ms = beside_ns(ran) / 1e6 if scenario.by_looks else 0
    assert least_ms - error_ms - beside_ms <= first["total_ms"] <= most_ms + error_ms, (
        least_ms, most_ms, beside_ms, ran.summary())


@pytest.mark.parametrize("scenario", [s for s in SCENARIOS if s.worker_bottleneck],
                         ids=lambda s: s.example)
def test_what_holds_up_the_workers(run, scenario):
    workers = run(scenario, cured=False).process["workers_in_gaps"]
    assert workers["bottleneck"] == scenario.worker_bottleneck, workers
    most = workers["lines"][0]["line"]
    assert most["file"].endswith(f"/{scenario.example}.py")
    assert [most["line"]] == marked_lines(scenario.example, "SLOW"), workers


def test_who_holds_the_gil(run):
    """Nearly all looks that find it waited for know its holder: the other thread, at its line."""
    scenario = BY_NAME["gil_contention"]
    ran = run(scenario, cured=False)
    gil = ran.process["host_in_gaps"]["gil"]
    assert gil["known_looks"] >= 0.8 * gil["looks"] > 0, gil
    rows = [row for row in gil["holders"] if row["line"] and row["line"]["function"] == "count"]
    lines = marked_lines(scenario.example, "HOLDS")
    there = sum(row["looks"] for row in rows if row["line"]["line"] in lines)
    assert there >= 0.8 * gil["known_looks"], (lines, gil)
    where = ran.problems[0]["where"].split(", ")[0]
    assert where.startswith(f"{scenario.example}.py:") and where.endswith("(count)"), where


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.example)
def test_cure_is_not_blamed(run, scenario):
    ran = run(scenario, cured=True)
    assert scenario.finding not in [f["id"] for f in ran.problems], ran.summary()
    assert ran.process["mean_step_ms"] > 0


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.example)
def test_division_is_true(run, scenario):
    """Without rest or overlap; what is busy as the device knows it; the mistake's cost in its parts."""
    ran = run(scenario, cured=False)
    division = ran.process["division"]
    for step in division["steps"]:
        assert sum(step["ns"].values()) == step["wall_ns"]
    parts = ran.parts()
    wall = division["wall_ns"]
    assert sum(parts.values()) == wall
    # What ran on launches from before the recording is of no kind that a verdict could know. And the
    # example reads its clock later than the optimizer's step ends, by as much as the machine is busy.
    begin, end = ran.span()
    error = 0.02 * wall + 2 * abs(end - begin - wall) + parts.get("earlier", 0)
    for kind, true in ran.divided_ns().items():
        seen = sum(ns for part, ns in parts.items() if part.startswith(f"copy_{kind}") or part == kind)
        assert abs(seen - true) <= error, (kind, seen, true, json.dumps(parts))
    if not scenario.parts:
        return
    told = sum(parts.get(part, 0) for part in scenario.parts)
    least, most = ran.least_cost_ns(), ran.most_cost_ns()
    error = max(TOLERANCE * most, LEAST * wall)
    # The machine's own part in it: a processor that was not there, whatever for.
    assert least - error - beside_ns(ran) <= told <= most + error, (least, told, most, json.dumps(parts))


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
