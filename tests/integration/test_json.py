# SPDX-License-Identifier: Apache-2.0
"""The schemas of the JSON documents, and that documents are as they say."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import schemas

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted(path.name.removesuffix(".schema.json") for path in schemas.SCHEMAS.iterdir())
SCENARIOS = ("starved", "pinned", "launches", "everything", "ranges", "ranks", "golden", "windows",
             "markup")


def load(name):
    return json.loads((schemas.SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))


def parts(schema):
    """(name, subschema) of each key, item and definition."""
    for key, of in schema.get("properties", {}).items():
        yield key, of
        yield from parts(of)
    if isinstance(schema.get("items"), dict):
        yield "items", schema["items"]
        yield from parts(schema["items"])
    for key, of in schema.get("$defs", {}).items():
        yield key, of
        yield from parts(of)


@pytest.mark.parametrize("name", NAMES)
def test_every_key_is_described_and_every_object_closed(name):
    schema = load(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    all_parts = [(name, schema), *parts(schema)]
    assert len(all_parts) > 8
    for key, of in all_parts:
        assert len(of.get("description", "")) > 3, f"{name}: {key} has no description"
        if "properties" in of:
            assert of["additionalProperties"] is False, f"{name}: {key} is open"
    for key, of in all_parts:
        for suffix, unit in (("_ms", "ms"), ("_us", "us")):
            if key.endswith(suffix) and of.get("type") in ("number", ["number", "null"]):
                assert of["x-unit"] == unit, f"{name}: {key}"


def test_the_page_is_made_of_the_schemas():
    result = subprocess.run([sys.executable, ROOT / ".ci" / "json_docs.py", "--check"],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    assert all(f"schema/{name}.schema.json" in page for name in NAMES)


def test_findings_of_the_code_are_those_of_the_schema():
    verdict = ROOT / "analysis" / "verdict"
    ids = set(re.findall(r'\{"(\w+)", (?:true|false), ', (verdict / "verdict.cpp").read_text()))
    ids |= set(re.findall(r'\{Cause::\w+, "(\w+)"', (verdict / "causes.cpp").read_text()))
    ids |= set(re.findall(r'\.id = "(\w+)"', (ROOT / "analysis" / "ranks.cpp").read_text()))
    assert len(ids) > 20
    described = load("report")["$defs"]["finding"]["properties"]["id"]["enum"]
    assert sorted(ids) == sorted(described)
    compared = load("compare")["$defs"]["compared_process"]["properties"]["first_finding"]["enum"]
    assert sorted(ids) == sorted(id for id in compared if id)
    verdict = (ROOT / "docs" / "verdict.md").read_text(encoding="utf-8")
    for id in ids:
        assert re.search(rf"^\| [^|]*\b{id}\b", verdict, re.M), f"docs/verdict.md does not name {id}"


@pytest.fixture(scope="module")
def recordings(build_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("scenarios")
    for scenario in SCENARIOS:
        (directory / scenario).mkdir()
        subprocess.run([build_dir / "bin" / "gpubusy_scenario", scenario, directory / scenario,
                        "recording"], check=True, timeout=60)
    return directory


def document(run, *command):
    result = run(command)
    assert result.returncode in (0, 1), result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_documents_of_made_up_runs(gpubusy, run, recordings, scenario):
    directory = recordings / scenario
    schemas.check(document(run, gpubusy, "report", "--json", directory), "report")
    for by in ("line", "function", "operator", "stack", "phase"):
        schemas.check(document(run, gpubusy, "report", "--by", by, "--json", directory), "tables")
    schemas.check(document(run, gpubusy, "whatif", "--json", directory), "whatif")
    schemas.check(document(run, gpubusy, "compare", "--json", "--fail-if", "step_time>1000%",
                           "--fail-if", "gpu_busy<-99%", recordings / "starved", directory), "compare")


def test_documents_of_odd_runs(gpubusy, run, recordings, build_dir, tmp_path):
    trace = ROOT / "tests" / "traces" / "kineto_resnet50_nw0.1623143089861.pt.trace.json.gz"
    schemas.check(document(run, gpubusy, "report", "--json", trace), "report")
    schemas.check(document(run, gpubusy, "compare", "--json", trace, recordings / "starved"), "compare")
    schemas.check(document(run, gpubusy, "doctor", "--json"), "doctor")
    torn = tmp_path / "torn.gpubusy"
    torn.write_bytes((recordings / "everything" / "everything0.gpubusy").read_bytes()[:9000])
    schemas.check(document(run, gpubusy, "report", "--json", torn), "report")


# Each of these must be noticed: else the checks above say nothing.
@pytest.mark.parametrize("spoil", [
    lambda d: d["processes"][0].update(new_key=1),
    lambda d: d["processes"][0].pop("busy_ms"),
    lambda d: d["processes"][0].update(busy_ms="much"),
    lambda d: d["processes"][0]["findings"][0].update(id="made_up"),
    lambda d: d["processes"][0]["steps"][0]["idle_ms"].update(lunch=1.0),
    lambda d: d["processes"][0]["copies"][0]["line"].update(column=3),
    lambda d: d.update(schema=2),
])
def test_what_is_not_described_is_noticed(gpubusy, run, recordings, spoil):
    good = document(run, gpubusy, "report", "--json", recordings / "starved")
    assert schemas.problems(good, "report") == []
    bad = copy.deepcopy(good)
    spoil(bad)
    assert len(schemas.problems(bad, "report")) == 1


def test_documents_of_all_tests_are_looked_at(gpubusy, recordings, tmp_path):
    command = [gpubusy, "report", "--json", recordings / "starved"]
    result = subprocess.run(command, capture_output=True)
    found, name = schemas.of_command(command, result)
    assert name == "report" and found == json.loads(result.stdout)
    assert schemas.of_command([gpubusy, "--", "python", "x.py", "--json"], result) is None
    broken = subprocess.CompletedProcess(command, 0, stdout=b'{"schema": 1}')
    with pytest.raises(AssertionError, match="python3 .ci/json_docs.py"):
        schemas.check(*schemas.of_command(command, broken))
    to_file = [*command, "--report", "verdict.json"]
    result = subprocess.run(to_file, capture_output=True, cwd=tmp_path)
    assert schemas.of_command(to_file, result, tmp_path)[1] == "report"
