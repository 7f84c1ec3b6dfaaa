# SPDX-License-Identifier: Apache-2.0
"""Programs that mark no steps, on the simulated device: turns of their loop are judged."""

import sys

import pytest

pytest.importorskip("torch")

from recorded import Run  # noqa: E402

INPUT = """
import time, torch
model = torch.nn.Linear(512, 512).cuda()
def prepare():
    time.sleep(0.03)
    return torch.zeros(300, 512)
@torch.no_grad()
def evaluate():
    for i in range(24):
        y = model(prepare().to("cuda")).relu().argmax(-1).cpu()
    return y
print(evaluate().shape)
time.sleep(0.5)
torch.cuda.synchronize()
"""
BUSY = """
import time, torch
model = torch.nn.Linear(512, 512).cuda()
batches = [torch.zeros(300, 512).pin_memory() for i in range(24)]
time.sleep(0.2)
with torch.no_grad():
    for x in batches:
        y = model(x.to("cuda", non_blocking=True)).relu().argmax(-1)
print(y.sum().item())
time.sleep(0.5)
torch.cuda.synchronize()
"""


@pytest.fixture
def judge(build_dir, clean_environment, tmp_path):
    def judge(text, *settings):
        program = tmp_path / "program.py"
        program.write_text(text)
        return Run(build_dir, clean_environment, tmp_path, [], [sys.executable, program],
                   settings).report

    return judge


def test_input_of_an_evaluation_is_named(judge):
    report = judge(INPUT)
    assert report["mode"] == "passes" and len(report["steps"]) == 22
    begins = report["pass_begins"]
    assert begins["file"].endswith("/program.py")
    assert (begins["line"], begins["function"]) == (10, "evaluate")
    # A function's name alone is no cause where nothing is trained.
    first = next(f for f in report["findings"] if f["problem"])
    assert first["id"] == "data_starvation"
    assert "program.py:5 (prepare)" in first["where"]
    # 30 ms each at least; what the program does behind its last work is no part of it.
    assert first["total_ms"] >= 22 * 29
    assert "DataLoader(num_workers" not in first["cure"]


def test_a_busy_loop_has_no_problem(judge):
    report = judge(BUSY, "kernel_us=8000")
    assert report["mode"] == "passes" and report["busy_share"] > 0.9
    assert [f["id"] for f in report["findings"] if f["problem"]] == []
