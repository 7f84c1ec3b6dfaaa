# SPDX-License-Identifier: Apache-2.0
"""Steps of trainings that replay CUDA graphs, on the simulated device."""

import sys

import pytest

pytest.importorskip("torch")

from recorded import Run  # noqa: E402

# A whole step in a graph; EAGER steps run before it is captured.
WHOLE = """
import torch
model = torch.nn.Linear(256, 256).cuda()
x = torch.zeros(64, 256, device="cuda")
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
def step():
    optimizer.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    for _ in range(EAGER):
        step()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
for _ in range(40):
    graph.replay()
    value = loss.item()
print("done")
"""
# The optimizer's step is outside of the graph.
FORWARD = """
import torch
model = torch.nn.Linear(256, 256).cuda()
x = torch.zeros(64, 256, device="cuda", requires_grad=True)
model = torch.cuda.make_graphed_callables(model, (x,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    value = loss.item()
print("done")
"""
INFERENCE = """
import torch
model = torch.nn.Linear(256, 256).cuda()
x = torch.zeros(64, 256, device="cuda")
with torch.no_grad():
    model(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = model(x)
    for _ in range(40):
        graph.replay()
        value = y.sum().item()
print("done")
"""


@pytest.fixture
def record(build_dir, clean_environment, tmp_path):
    def record(text, *options):
        program = tmp_path / "program.py"
        program.write_text(text)
        run = Run(build_dir, clean_environment, tmp_path, options, [sys.executable, program])
        assert run.result.returncode == 0 and run.result.stdout == "done\n", run.result.stderr
        return run

    return record


@pytest.mark.parametrize("eager", [0, 3])
def test_replays_of_a_whole_step_are_steps(record, eager):
    run = record(WHOLE.replace("EAGER", str(eager)), "--skip-first", "10", "--wait", "0",
                 "--warmup", "2", "--active", "8")
    assert run.report["steps_seen"] == 40 + eager
    assert run.report["mode"] == "steps" and len(run.report["steps"]) == 8
    # Each step holds one replay, whole: the window is of the graph, not of what came before it.
    launches = [c for c in run.events("cuda_runtime") if c["name"] == "cudaGraphLaunch"]
    assert len(launches) == 8


def test_an_optimizer_beside_a_graph_counts_once(record):
    run = record(FORWARD, "--skip-first", "10", "--wait", "0", "--warmup", "2", "--active", "8")
    assert run.report["steps_seen"] == 40
    assert len(run.report["steps"]) == 8


def test_a_graph_without_an_optimizer_is_no_step(record):
    run = record(INFERENCE)
    assert run.report["steps_seen"] == 0
    assert run.report["mode"] != "steps"
