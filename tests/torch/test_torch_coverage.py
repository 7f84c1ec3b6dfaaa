# SPDX-License-Identifier: Apache-2.0
"""Coverage as the report tells it, of real PyTorch on the simulated device."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")

LOOP = """
import time, torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.randn(8, 64).cuda()).sum().backward()
    optimizer.step()
torch.cuda.synchronize()
time.sleep(0.3)  # lest libtorch aborts: docs/simulator.md, "Exit"
"""


@pytest.fixture
def report(build_dir, clean_environment, tmp_path):
    def report(code):
        result = subprocess.run(
            [build_dir / "bin" / "gpubusy-sim", build_dir / "bin" / "gpubusy", "-o", tmp_path / "out",
             "--report", tmp_path / "report.json", "--json", "--no-export", "--", sys.executable,
             "-c", code],
            env=clean_environment, capture_output=True, text=True, timeout=300,
        )
        assert result.returncode == 0, result.stderr
        return result, (tmp_path / "report.json").read_text()

    return report


def test_layers_and_libraries(report):
    _, text = report(LOOP)
    [process] = [p for p in json.loads(text)["processes"] if p["calls"]]
    coverage = process["coverage"]
    runtime, driver = coverage["layers"]["runtime"], coverage["layers"]["driver"]
    # torch is linked to the runtime; cuBLAS brings its own, and asks the driver for everything.
    assert runtime["calls"] == runtime["calls_of_linked_functions"] > 10
    assert driver["calls"] > 5 and driver["calls_of_linked_functions"] == 0
    assert driver["functions_by_dlsym"] >= 1 and driver["functions_by_cuGetProcAddress"] > 20
    names = {path.rsplit("/", 1)[1].split(".so")[0] for path in coverage["embedded_runtimes"]}
    assert {"libcublasLt", "libcublas", "libnccl", "libcusolver", "libcusparse"} <= names
    assert not names & {"libcudart", "libtorch_cuda", "libtorch_cpu", "libtorch_cuda_linalg", "libc"}
    assert coverage["embedded_runtimes_unseen"] is False
    assert coverage["modules_not_read"] == []


def test_import_alone_is_no_word(report, tmp_path):
    """Without a GPU, and also where the driver is there but came with a preload."""
    result, text = report("import torch")
    assert "libcuda" not in result.stderr and "libcuda" not in text
    found = json.loads(text)
    assert "no CUDA call was intercepted" in found["nothing_recorded"] and found["processes"] == []
    assert not list((tmp_path / "out").glob("*.gpubusy"))
