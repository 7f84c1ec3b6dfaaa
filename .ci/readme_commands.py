#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every command of the README's ```sh blocks, in order, in one scratch copy of the clone's
surroundings: examples/ is there, the programs built here are on PATH."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

# These ran already, or stand for the reader's own program.
ELSEWHERE = {"./dev demo", "./dev test", "gpubusy python train.py"}


def main():
    root = Path(__file__).resolve().parents[1]
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
    commands = [line for block in blocks for line in block.splitlines() if line.strip()]
    venv = Path(os.environ.get("GPUBUSY_VENV", root / ".cache" / "venv"))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPUBUSY_")}
    environment["PATH"] = f"{root / 'build/dev/bin'}:{venv / 'bin'}:{environment['PATH']}"
    failed = ran = 0
    with tempfile.TemporaryDirectory(prefix="gpubusy-readme-") as scratch:
        (Path(scratch) / "examples").symlink_to(root / "examples")
        for command in commands:
            if command in ELSEWHERE:
                print(f"elsewhere  {command}")
                continue
            ran += 1
            result = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command], cwd=scratch, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
            )
            good = result.returncode == 0
            failed += not good
            print(f"{'ok' if good else 'FAILED':9}  {command}")
            if not good:
                print(result.stdout[-2000:] + result.stderr[-2000:])
    print(f"{ran} commands of the README, {failed} failed")
    sys.exit(failed != 0 or ran == 0)


main()
