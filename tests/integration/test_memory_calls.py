# SPDX-License-Identifier: Apache-2.0
"""Driver calls beside the common ones, against the log of what the simulated device did."""

import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator"))
import truth  # noqa: E402


@pytest.mark.parametrize("source", ["cupti", "events"])
def test_calls_and_bytes_are_the_devices(source, build_dir, programs, tmp_path, clean_environment):
    program = programs / "memory_calls"
    if not program.exists():
        pytest.skip("no simulated device (no CUDA headers)")
    log_directory = tmp_path / "truth"
    log_directory.mkdir()
    result = subprocess.run(
        [build_dir / "bin" / "gpubusy-sim", "--set", f"truth={log_directory}",
         "--set", "context_ms=1", build_dir / "bin" / "gpubusy", "-o", tmp_path / "out",
         "--step=none", f"--device-time={source}", "--", program],
        env=clean_environment, capture_output=True, text=True, timeout=60,
    )
    assert (result.returncode, result.stdout) == (0, "done\n"), result.stderr
    [log] = truth.load_directory(log_directory)
    [trace] = (tmp_path / "out").glob("*.pt.trace.json.gz")
    events = json.loads(gzip.open(trace).read())["traceEvents"]

    # The recording begins with the first call that works, allocates or waits: with cuMemCreate.
    calls = Counter(e["name"] for e in events if e.get("cat") == "cuda_driver")
    assert calls == Counter({
        "cuMemCreate": 1, "cuMemMap": 1, "cuMemSetAccess": 1,
        "cuMemsetD32Async": 1, "cuMemHostAlloc": 1, "cuMemcpyBatchAsync": 2,
        "cuMemcpy3DPeerAsync": 1, "cuCtxSynchronize": 1, "cuMemUnmap": 1, "cuMemRelease": 1,
        "cuMemAddressFree": 1, "cuMemFreeHost": 1, "cuGraphInstantiateWithFlags": 1,
        "cuGraphUpload": 1, "cuGraphExecUpdate": 1, "cuGraphExecDestroy": 1})

    # A batch is one call; round it events see one piece of work with the bytes of all its copies.
    done = Counter()
    for number, operation in enumerate(log.operations):
        done[number if source == "cupti" else operation.correlation] += operation.bytes
    seen = [e["args"]["bytes"] for e in events if e.get("cat") in ("gpu_memcpy", "gpu_memset")]
    assert sorted(seen) == sorted(done.values())
    assert len(seen) == (7 if source == "cupti" else 4)
    names = [e["name"] for e in events if e.get("cat") == "gpu_memcpy"]
    assert {n.split(" (")[0] for n in names} >= {"Memcpy DtoH", "Memcpy HtoD"}

    # Memory is counted where it is made, not where it is mapped or given an address.
    sizes = {e["name"]: e["args"].get("bytes") for e in events if e.get("cat") == "cuda_driver"}
    made = {name: size for name, size in sizes.items() if size and "cpy" not in name
            and "set" not in name}
    assert made == {"cuMemCreate": 3 << 21, "cuMemHostAlloc": 3 * 4096}
