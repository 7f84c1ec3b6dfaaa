# SPDX-License-Identifier: Apache-2.0
"""What is in the page, against the report and against the Chrome trace of the same recording, which is
written by other code."""

import base64
import hashlib
import json
import random
import re
import subprocess
from collections import Counter, defaultdict

import pytest
from page import Page


def sums(rows):
    out = defaultdict(lambda: [0, 0])
    for key, duration in rows:
        out[key][0] += 1
        out[key][1] += duration
    return dict(out)


def trace_events(build_dir, recording, tmp_path):
    subprocess.run(
        [build_dir / "bin" / "gpubusy", "export", recording, "-o", tmp_path, "--no-compress", "-q"],
        timeout=300, check=True,
    )
    out = []
    for path in tmp_path.glob("*.trace.json"):
        out += json.loads(path.read_text())["traceEvents"]
    return [event for event in out if event["ph"] == "X"]


def ns(microseconds):
    return round(microseconds * 1000)


@pytest.mark.parametrize("scenario", ["starved", "everything", "launches", "ranges"])
def test_the_timeline_has_what_the_trace_has(pages, build_dir, tmp_path, scenario):
    path, _, recording = pages(scenario)
    lanes = Page(path).lanes()
    rows = trace_events(build_dir, recording, tmp_path)

    work = sums(((lane["device"], lane["stream"]), e.duration)
                for lane, events in lanes if lane["kind"] == "device" for e in events)
    expected = sums(((r["args"]["device"], r["args"]["stream"]), ns(r["dur"])) for r in rows
                    if r["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"))
    assert work == expected and work
    calls = sums((lane["thread"], e.duration)
                 for lane, events in lanes if lane["kind"] == "calls" for e in events)
    # Overlapping ones have rows of their own in the trace, far from any thread's.
    expected = sums((r["tid"] % 10_000_000, ns(r["dur"])) for r in rows if r["cat"].startswith("cuda_"))
    assert calls == expected and calls
    names = Counter(e.name for lane, events in lanes if lane["kind"] == "calls" for e in events)
    assert names == Counter(r["name"] for r in rows if r["cat"].startswith("cuda_"))
    sizes = sum(e.bytes for lane, events in lanes if lane["kind"] == "device" for e in events)
    assert sizes == sum(r["args"].get("bytes", 0) for r in rows if r["cat"].startswith("gpu_mem"))


def test_ranges_are_those_of_the_trace(pages, build_dir, tmp_path):
    path, _, recording = pages("ranges")
    lanes = Page(path).lanes()
    shown = Counter(e.name.partition(": ")[2] or e.name
                    for lane, events in lanes if lane["kind"] == "ranges" for e in events if e.duration)
    rows = [r for r in trace_events(build_dir, recording, tmp_path)
            if r["cat"] == "user_annotation" and not r["name"].startswith("ProfilerStep#")]
    expected = Counter(r["name"] for r in rows)
    # Open in the recording's copy and ended later: one range, known by its id.
    assert shown == expected and shown["forward"] == 4 and shown["epoch"] == 1


@pytest.mark.parametrize("scenario", ["starved", "everything", "launches", "uneven"])
def test_steps_and_idle_time_are_those_of_the_report(pages, scenario):
    path, report, _ = pages(scenario)
    lanes = Page(path).lanes()
    process = report["processes"][0]
    steps = next(events for lane, events in lanes if lane["kind"] == "steps")
    assert [e.duration for e in steps] == [ns(s["wall_ms"] * 1000) for s in process["steps"]]
    assert [e.name for e in steps] == [f"step {s['step']}" for s in process["steps"]]
    idle = [e for lane, events in lanes if lane["kind"] == "idle" for e in events]
    assert sum(e.duration for e in idle) == ns((process["wall_ms"] - process["busy_ms"]) * 1000)
    for cause, ms in process["idle_ms"].items():
        assert sum(e.idle[cause] for e in idle) == ns(ms * 1000), cause
    for event in idle:
        assert sum(event.idle.values()) == event.duration


def test_work_leads_to_its_call_and_stack(pages):
    lanes = Page(pages("starved")[0]).lanes()
    calls = {e.call: e for lane, events in lanes if lane["kind"] == "calls" for e in events}
    work = [e for lane, events in lanes if lane["kind"] == "device" for e in events]
    assert len(work) == 20 * 17 and len(calls) == 20 * 17
    for event in work:
        call = calls[event.call]
        copy = event.name == "Memcpy HtoD (Pageable -> Device)"
        assert call.name == ("cudaMemcpyAsync" if copy else "cudaLaunchKernel")
        assert event.start >= call.start
        own = [frame for frame in call.stack if frame[3]]  # file, function, line, user
        assert own[0][:2] == ["/home/user/job/train.py", "main"]
        assert own[0][2] == 58 if copy else own[0][2] in (60, 63)
        assert event.bytes == (8_000_000 if copy else 0)


def test_known_sums(pages):
    """Of a recording whose numbers are plain: 990,000 kernels, of 0 to 8 us in turn."""
    head = Page(pages("million")[0]).head()
    assert head["events"] == 500 + 1_000_000 + 990_000 + next(
        lane["count"] for lane in head["lanes"] if lane["kind"] == "idle")
    assert [lane["count"] for lane in head["lanes"] if lane["kind"] == "calls"] == [1_000_000]
    assert [lane["count"] for lane in head["lanes"] if lane["kind"] == "device"] == [990_000]
    assert head["left_out"] == 0 and head["cut_ns"] is None


def test_a_million_events_stay_small(pages):
    path, _, _ = pages("uneven")
    assert Page(path).head()["events"] > 1_000_000
    assert path.stat().st_size < 25_000_000


@pytest.fixture
def cut_page(build_dir, tmp_path):
    page = tmp_path / "page.html"
    with page.open("wb") as file:
        subprocess.run([build_dir / "bin" / "gpubusy_scenario", "starved", tmp_path, "html", "100"],
                       stdout=file, timeout=60, check=True)
    return page


def test_what_is_left_out_is_counted(cut_page, pages):
    """Of 340 calls with one piece of work each, 50 fit into 100 events; all numbers stay."""
    page, whole = Page(cut_page), Page(pages("starved")[0])
    head = page.head()
    assert head["left_out"] == 2 * (340 - 50)
    assert [lane["count"] for lane in head["lanes"] if lane["kind"] in ("device", "calls")] == [50, 50]
    first = [events for lane, events in page.lanes() if lane["kind"] == "calls"][0]
    all_calls = [events for lane, events in whole.lanes() if lane["kind"] == "calls"][0]
    assert first == all_calls[:50] and head["cut_ns"] == all_calls[50].start
    assert page.report["processes"][0]["kernels"] == whole.report["processes"][0]["kernels"]
    assert page.flames() == whole.flames()


def test_the_page_says_what_is_left_out(cut_page, open_page):
    tab = open_page(cut_page)
    assert " 580 more were left out for size: calls and work from " in tab.text_content("#timeline-note")
    assert tab.evaluate(
        "[...document.querySelectorAll('#table-coverage tr')].filter((r) => r.textContent.includes("
        "'left out of the timeline')).map((r) => r.children[1].dataset.value)") == ["580"]


def test_damaged_recordings_make_whole_pages(build_dir, pages, tmp_path):
    sound = [next(pages(name)[2].glob("*.gpubusy")).read_bytes() for name in ("everything", "ranges")]
    chance = random.Random(5)
    made = 0
    for _ in range(80):
        data = bytearray(chance.choice(sound))
        for _ in range(chance.choice([1, 3, 10, 60])):
            at = chance.randrange(200, len(data))
            data[at] = chance.choice([0, 255, data[at] ^ (1 << chance.randrange(8))])
        (tmp_path / "damaged.gpubusy").write_bytes(data)
        run = subprocess.run([build_dir / "bin" / "gpubusy", "report", tmp_path, "--html", tmp_path / "page.html"],
                             capture_output=True, timeout=60)
        assert run.returncode in (0, 1), run.stderr
        if run.returncode != 0:
            continue
        page = Page(tmp_path / "page.html")
        for process in range(len(page.report["processes"])):
            span = page.head(process)["span_ns"]
            for _, events in page.lanes(process):
                assert all(e.start + e.duration <= span for e in events)
                made += 1
    assert made > 100


def test_flames_add_up(pages):
    path, report, _ = pages("starved")
    process = report["processes"][0]
    flames = Page(path).flames()
    assert flames["launches"]["root"]["value"] == process["launches"] == 320
    assert flames["idle"]["root"]["value"] == ns((process["wall_ms"] - process["busy_ms"]) * 1000)
    assert flames["device"]["root"]["value"] == 20 * (1_900_000 + 16 * 500_000)

    def check(node):
        inside = sum(child["value"] for child in node.get("children", []))
        assert inside <= node["value"]
        for child in node.get("children", []):
            check(child)

    for flame in flames.values():
        check(flame["root"])
    # 12 of 16 launches at line 60, the rest below optimizer.step() at line 63.
    module = flames["launches"]["root"]["children"][0]
    assert module["name"] == "<module> (train.py:70)" and module["user"] is True
    assert {c["name"]: c["value"] for c in module["children"]} == {
        "main (train.py:60)": 240, "main (train.py:63)": 80}


def test_the_report_is_the_json_report(pages):
    for scenario in ("starved", "everything", "ranks", "markup"):
        path, report, _ = pages(scenario)
        assert Page(path).report == report


def test_ranks_have_timelines_of_their_own(pages):
    page = Page(pages("ranks")[0])
    assert [p["rank"] for p in page.report["processes"]] == [0, 1]
    for process, report in enumerate(page.report["processes"]):
        threads = {lane["thread"] for lane, _ in page.lanes(process) if lane["kind"] == "calls"}
        assert threads == {report["pid"]}


def test_what_was_not_recorded_is_told(pages, build_dir, tmp_path, open_page):
    """Two windows of two steps each, 1 s apart."""
    subprocess.run([build_dir / "bin" / "gpubusy_scenario", "windows", tmp_path, "recording"],
                   timeout=60, check=True)
    path = tmp_path / "page.html"
    subprocess.run([build_dir / "bin" / "gpubusy", "report", tmp_path, "--html", path], timeout=60, check=True)
    assert Page(path).head()["windows"] == [[0, 20_000_000], [1_020_000_000, 1_040_000_000]]
    assert open_page(path).evaluate("gpubusy.timeline.holes") == [[20_000_000, 1_020_000_000, "not recorded"]]


def test_uncompressed_page_has_the_same(pages):
    packed, plain = Page(pages("everything")[0]), Page(pages("everything", "--no-compress")[0])
    assert plain.by_id["columns-0"][0]["type"] == "application/octet-stream"
    assert packed.by_id["columns-0"][0]["type"] == "application/gzip"
    assert plain.lanes() == packed.lanes()


def test_policy_allows_this_script_alone(pages):
    page = Page(pages("starved")[0])
    [own] = [text for attributes, text in page.scripts if "type" not in attributes]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page.policy
    style = re.search(r"<style>(.*?)</style>", page.text, re.S).group(1)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in page.policy
    assert page.policy.startswith("default-src 'none'; ") and "unsafe" not in page.policy


def test_nothing_from_elsewhere(pages):
    text = Page(pages("starved")[0]).text
    assert not re.search(r"(src|href)=[\"']?(https?:)?//|@import|url\(", text)
