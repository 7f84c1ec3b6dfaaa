# SPDX-License-Identifier: Apache-2.0
"""docs/field-cases.md names tests that exist, and has a row for every case."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [[cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [IT]\d\d ", line)]
CASES = [f"I{n:02}" for n in range(1, 16)] + [f"T{n:02}" for n in (*range(1, 10), 12)]


def exists(name):
    file, test = name.split("::")
    path = ROOT / file if "/" in file else ROOT / "tests" / "field" / file
    if not path.exists():
        return False
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return re.search(rf"^def {re.escape(test)}\(", text, re.MULTILINE) is not None
    suite, case = test.split(".")
    return re.search(rf"^TEST(_F|_P)?\({suite}, {case}\)", text, re.MULTILINE) is not None


def test_every_case_has_its_row():
    assert [row[0].split()[0] for row in ROWS] == CASES


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split()[0])
def test_named_tests_exist(row):
    case, names, status = row
    tests = [name.strip() for name in names.split(",") if name.strip()]
    assert status and tests, f"{case}: no test"
    assert [name for name in tests if not exists(name)] == []


def test_every_field_test_is_in_the_table():
    named = " ".join(row[1] for row in ROWS)
    for file in ("test_field_interposition.py", "test_field_traces.py"):
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        for test in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE):
            assert f"{file}::{test}" in named, f"{test} is not in docs/field-cases.md"
