# SPDX-License-Identifier: Apache-2.0
"""Pages of synthetic recordings, made once per test run, and a browser."""

import json
import shutil
import subprocess

import pytest


@pytest.fixture(scope="session")
def pages(build_dir, tmp_path_factory):
    """pages(scenario) -> (page, JSON report, recording's directory)."""
    made = {}

    def make(scenario, *options):
        key = (scenario, *options)
        if key not in made:
            folder = tmp_path_factory.mktemp(scenario)
            recording = folder / "recording"
            recording.mkdir()
            tool, gpubusy = build_dir / "bin" / "gpubusy_scenario", build_dir / "bin" / "gpubusy"
            subprocess.run([tool, scenario, recording, "recording"], timeout=300, check=True)
            page = folder / "page.html"
            subprocess.run(
                [gpubusy, "report", recording, "--html", page, *options], timeout=300, check=True
            )
            report = subprocess.run(
                [gpubusy, "report", recording, "--json"],
                capture_output=True, timeout=300, check=True,
            )
            made[key] = (page, json.loads(report.stdout), recording)
        return made[key]

    return make


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.fail("no chromium: ./dev setup installs it")
    with sync_playwright() as playwright:
        # As root, as in a container, Chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """A page in the browser, and all that it did wrong."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        self.requests = []
        page.on("console", lambda m: m.type in ("error", "warning") and self.complaints.append(m.text))
        page.on("pageerror", lambda e: self.complaints.append(str(e)))
        page.on("dialog", lambda d: (self.complaints.append("dialog"), d.dismiss()))
        page.on("request", lambda r: self.requests.append(r.url))

    def __getattr__(self, name):
        return getattr(self.page, name)


@pytest.fixture
def open_page(browser):
    """open_page(path, **options of the tab) -> a tab whose page is ready. At the end of the test it
    must have made no request but for the page, and no complaint."""
    tabs = []

    def open_page(path, **options):
        options.setdefault("viewport", {"width": 1280, "height": 900})
        context = browser.new_context(**options)
        tab = Tab(context.new_page())
        tabs.append((context, tab, path.as_uri()))
        tab.goto(path.as_uri())
        tab.evaluate("gpubusy.ready")
        return tab

    yield open_page
    for context, tab, address in tabs:
        context.close()
        assert tab.complaints == []
        assert [url for url in tab.requests if url.partition("#")[0] != address] == []
