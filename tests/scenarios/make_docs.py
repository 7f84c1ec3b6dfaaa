#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes docs/examples.md: every example, what gpubusy says of it, and its cure.

    python3 tests/scenarios/make_docs.py [--build DIR] [--keep DIR]

Runs all examples, with the mistake and cured, on the simulated device (some minutes); runs that --keep
holds already are used again.
"""

import argparse
import ast
import os
import re
import subprocess
import tempfile
import textwrap
from pathlib import Path

from expected import QUEUE, SCENARIOS
from harness import ROOT, SCHEDULE, Run

HEAD = """# Examples: one bottleneck each, and its cure

Each program below is a plain PyTorch training with one mistake; `--cured` runs it without. The verdicts
are real output of gpubusy, on the simulated device of a small, busy machine: times vary, causes and lines
do not. This file is written by `python3 tests/scenarios/make_docs.py`; that the verdicts are right is
what `./dev test scenarios` tests, against the time that each mistake truly cost.

```sh
gpubusy {schedule} gpubusy-sim --set {queue} python examples/NAME.py
gpubusy {schedule} gpubusy-sim --set {queue} python examples/NAME.py --cured
```

The simulated device's speed is set for each (`--set`), so that the mistake costs a good part of the step
(with its default speed kernels take 5 µs, and launching them is what costs most); on a GPU leave out `gpubusy-sim` and its options. [examples/train.py](../examples/train.py) is the demo.

| example | first finding | step, ms | cured |
|---|---|---|---|
"""


def documentation(example):
    text = ast.get_docstring(ast.parse((ROOT / "examples" / f"{example}.py").read_text()))
    title, _, rest = text.partition("\n\n")
    return " ".join(title.split()), rest


def first_finding(build, run):
    """The first problem of the text report, as it is."""
    text = subprocess.run([build / "bin" / "gpubusy", "report", run.directory / "out"], check=True,
                          capture_output=True, text=True).stdout
    text = text.replace(str(ROOT) + "/", "")
    # Of several ranks the one that the tests judge.
    text = text[text.index(f"pid {run.process['pid']} "):]
    busy = re.search(r"^GPU busy.*$", text, re.M)[0]
    finding = re.search(r"^  1\. .*?(?=^  2\. |^\S|\n\n)", text, re.M | re.S)[0]
    return f"{busy}\n\n{finding.rstrip()}"


def steps_text(run):
    return f"{run.process['mean_step_ms']:.1f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path,
                        default=os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    table, sections = "", ""
    with tempfile.TemporaryDirectory() as directory:
        directory = args.keep or Path(directory)
        for scenario in SCENARIOS:
            name = scenario.example
            before = Run(args.build, directory / name, scenario, False)
            after = Run(args.build, directory / f"{name}-cured", scenario, True)
            title, rest = documentation(name)
            cured = after.findings[0] if after.findings else None
            table += (f"| [{name}](#{name}) | `{before.problems[0]['id']}` | {steps_text(before)} "
                      f"| {steps_text(after)} |\n")
            settings = " ".join(s if not s.endswith("=") else s + "FILE" for s in scenario.settings)
            sections += (
                f"\n## {name}\n\n**{title}** {rest}\n\n"
                f"With `--set {settings.replace(' ', ' --set ')}`:\n\n"
                f"```text\n{first_finding(args.build, before)}\n```\n\n"
                f"Cured: a step of {steps_text(after)} ms instead of {steps_text(before)} ms, GPU busy "
                f"{after.process['busy_share'] * 100:.0f} % instead of "
                f"{before.process['busy_share'] * 100:.0f} %"
                + (f"; first finding now: `{cured['id']}`.\n" if cured else "; nothing found.\n"))
    head = HEAD.format(schedule=" ".join(SCHEDULE), queue=QUEUE)
    (ROOT / "docs" / "examples.md").write_text(textwrap.dedent(head) + table + sections)


if __name__ == "__main__":
    main()
