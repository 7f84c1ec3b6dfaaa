# SPDX-License-Identifier: Apache-2.0
"""`--html` of the run and of the report."""

import os
import subprocess

import pytest
from page import Page


@pytest.fixture
def gpubusy(build_dir):
    return build_dir / "bin" / "gpubusy"


@pytest.fixture
def run(clean_environment, tmp_path):
    def run(command):
        return subprocess.run(command, cwd=tmp_path, env=clean_environment, capture_output=True,
                              text=True, timeout=60)
    return run


def test_run_writes_a_page(gpubusy, programs, run, tmp_path, open_page):
    if not (programs / "launch_many").exists():
        pytest.skip("tests/programs is not built (no CUDA headers)")
    result = run([gpubusy, "-q", "--device-time", "off", "-o", "out", "--html", "page.html", "--",
                  programs / "launch_many", "500"])
    assert (result.stdout, result.stderr) == ("launched 500\n", "")
    loud = run([gpubusy, "--no-export", "-o", "out2", "--html", "page2.html", "--", programs / "launch_many", "5"])
    assert loud.stderr.endswith("\ngpubusy: page: page2.html\n")
    page = Page(tmp_path / "page.html")
    [process] = page.report["processes"]
    [events] = [events for lane, events in page.lanes() if lane["kind"] == "calls"]
    assert len(events) == process["calls"] >= 500
    tab = open_page(tmp_path / "page.html")  # no device time: what is not known is not 0
    assert tab.text_content("#busy strong") == "not known"
    assert "how busy the GPU was is not known" in tab.text_content("#split-table")


def test_run_without_a_cuda_call_has_a_page(gpubusy, run, tmp_path):
    assert run([gpubusy, "--html", "page.html", "true"]).returncode == 0
    assert (tmp_path / "page.html").read_text().endswith("</html>\n")


def test_page_of_nothing_in_the_browser(gpubusy, run, tmp_path, open_page):
    run([gpubusy, "--html", "page.html", "true"])
    tab = open_page(tmp_path / "page.html")
    assert "Nothing was recorded." in tab.text_content("main") or tab.evaluate(
        "gpubusy.report.processes[0].calls") == 0


def test_unwritable_page(gpubusy, run, pages, tmp_path):
    refused = run([gpubusy, "--html", "missing/page.html", "true"])
    assert refused.returncode == 125 and "--html 'missing/page.html'" in refused.stderr
    recording = pages("starved")[2]
    late = run([gpubusy, "report", recording, "--html", "missing/page.html"])
    assert late.returncode == 1 and "cannot write 'missing/page.html'" in late.stderr
    if os.path.exists("/dev/full"):
        full = run([gpubusy, "report", recording, "--html", "/dev/full"])
        assert full.returncode == 1 and "No space left" in full.stderr


def test_report_writes_the_page_alone(gpubusy, run, pages, tmp_path):
    recording = pages("starved")[2]
    result = run([gpubusy, "report", recording, "--html", "page.html"])
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    both = run([gpubusy, "report", recording, "--html", "page.html", "--json"])
    assert both.stdout.startswith('{\n "schema": 1')


def test_compare_has_no_page(gpubusy, run, pages):
    recording = pages("starved")[2]
    result = run([gpubusy, "compare", recording, recording, "--html", "page.html"])
    assert result.returncode == 125 and "compare has no HTML page" in result.stderr
