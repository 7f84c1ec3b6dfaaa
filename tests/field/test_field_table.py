# SPDX-License-Identifier: Apache-2.0
"""docs/field-cases.md names tests that exist, and has a row for every case of the list."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [[cell.strip() for cell in line.strip("|\n").split("|")]
        for line in (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [A-Z]\d\d ", line)]
# The list of cases, which is not in the repository: its numbers. Those that are missing were given up.
CASES = [f"{group}{n:02}" for group, numbers in (
    ("I", range(1, 16)), ("T", (*range(1, 10), 12)), ("D", range(1, 12)), ("R", (*range(1, 7), 13)))
         for n in numbers]


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


def test_the_numbers_that_the_page_states_are_all_there():
    """"I01 to I15 (15)": of each group as many rows as it says, from the first to the last."""
    text = (ROOT / "docs" / "field-cases.md").read_text(encoding="utf-8")
    stated = re.findall(r"([A-Z])(\d\d) to ([A-Z])(\d\d) \((\d+)\)", text)
    assert [(a, int(count)) for a, _, _, _, count in stated] == [
        (group, sum(case[0] == group for case in CASES)) for group in "ITDR"]
    numbers = [row[0].split()[0] for row in ROWS]
    for group, first, again, last, count in stated:
        rows = [number for number in numbers if number[0] == group]
        assert group == again and len(rows) == int(count)
        assert (rows[0], rows[-1]) == (group + first, group + last)
    assert f"{len(numbers)} cases" in text and len(numbers) == sum(int(s[4]) for s in stated)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].split()[0])
def test_named_tests_exist(row):
    case, names, status = row
    tests = [name.strip() for name in names.split(",") if name.strip()]
    assert status and tests, f"{case}: no test"
    assert [name for name in tests if not exists(name)] == []


def test_every_field_test_is_in_the_table():
    named = " ".join(row[1] for row in ROWS)
    files = sorted(path.name for path in Path(__file__).parent.glob("test_field_*.py"))
    files.remove(Path(__file__).name)
    assert len(files) >= 4
    for file in files:
        text = (Path(__file__).parent / file).read_text(encoding="utf-8")
        for test in re.findall(r"^def (test_\w+)\(", text, re.MULTILINE):
            assert f"{file}::{test}" in named, f"{test} is not in docs/field-cases.md"
