# SPDX-License-Identifier: Apache-2.0
"""Lines of a thread that runs while it is looked at, on the simulated device."""

import sys

import pytest

pytest.importorskip("torch")

from recorded import Run  # noqa: E402

# Slots of classes: C code calls back into Python for an instant each, so that frames, and the
# interpreter's own on the stack, come and go while they are read.
PROGRAM = """
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
class Point:
    def __init__(self, v):
        self.v = v
    @property
    def a(self):
        return self.b
    @property
    def b(self):
        return self.v
    def __getitem__(self, i):
        return Point(self.v + i)
    def __add__(self, other):
        return Point(self.a + other.a)
    def __eq__(self, other):
        return self.a == other.a
    def __hash__(self):
        return hash(self.a)
    def __len__(self):
        return 3
    def __contains__(self, x):
        return x == self
def short():
    p = Point(1)
    q = p[1] + p[2]
    q == p; hash(q); p in q; len(q)
    return {q: 1, p: 2}
def prepare(x):
    until = time.thread_time() + 0.03
    while time.thread_time() < until:
        short()
    return x
for _ in range(36):
    loss = model(prepare(torch.zeros(8, 64)).to("cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("done", loss.item() == loss.item())
"""


def test_a_busy_thread_has_lines(build_dir, clean_environment, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = Run(build_dir, clean_environment, tmp_path, [], [sys.executable, program])
    rows = run.report["host_in_gaps"]["rows"]
    known = sum(row["total_ms"] for row in rows if row["line"])
    whole = sum(row["total_ms"] for row in rows)
    # Before, with both processors free, a fifth.
    assert known > 0.8 * whole > 0, (known, whole)
    first = next(f for f in run.report["findings"] if f["problem"])
    assert first["where"].startswith("program.py:"), first["where"]
