# SPDX-License-Identifier: Apache-2.0
"""What a report of a large recording needs."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[1] / "bench" / "report_size.py"


def test_memory_per_event(build_dir, tmp_path):
    """A million calls and as many device times: 200 bytes of each, so that ten million fit 2 GB."""
    out = tmp_path / "size.json"
    subprocess.run([sys.executable, BENCH, "--build", build_dir, "--scenario", "million",
                    "--rounds", "1", "--json", out], check=True, timeout=300,
                   stdout=subprocess.DEVNULL)
    size = json.loads(out.read_text())
    assert size["recording_bytes"] > 50e6
    assert size["report_bytes"] < 2_000_000 * 200 + 64 * 2**20
