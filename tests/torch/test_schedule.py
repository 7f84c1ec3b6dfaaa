# SPDX-License-Identifier: Apache-2.0
"""Our schedule is torch.profiler.schedule: compared over a wide range of parameters."""

import random
import subprocess
import warnings

import pytest

profiler = pytest.importorskip("torch.profiler")

STEPS = 120
LETTER = {"NONE": "N", "WARMUP": "W", "RECORD": "R", "RECORD_AND_SAVE": "S"}


def torch_actions(skip_first, skip_first_wait, wait, warmup, active, repeat):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "won't be using warmup"
        action = profiler.schedule(
            wait=wait, warmup=warmup, active=active, repeat=repeat, skip_first=skip_first,
            skip_first_wait=skip_first_wait,
        )
    return "".join(LETTER[action(step).name] for step in range(STEPS))


def parameters():
    small = [0, 1, 2, 5]
    for skip_first in small:
        for skip_first_wait in (0, 1, 7):
            for wait in small:
                for warmup in small:
                    for active in (1, 2, 3, 10):
                        for repeat in (0, 1, 2, 10):
                            yield skip_first, skip_first_wait, wait, warmup, active, repeat
    generator = random.Random(20261130)
    for _ in range(2000):
        yield (
            generator.randrange(150), generator.randrange(3), generator.randrange(60),
            generator.randrange(60), 1 + generator.randrange(60), generator.randrange(8),
        )


def test_same_as_torch(build_dir):
    cases = list(parameters())
    text = "".join(" ".join(map(str, (*case, STEPS))) + "\n" for case in cases)
    dump = subprocess.run(
        [build_dir / "bin" / "gpubusy_schedule_dump"], input=text, capture_output=True, text=True,
        check=True,
    )
    ours = dump.stdout.splitlines()
    assert len(ours) == len(cases) > 4000
    different = [
        (case, actions, torch_actions(*case))
        for case, actions in zip(cases, ours)
        if actions != torch_actions(*case)
    ]
    assert not different, different[:3]


def test_reference_windows(build_dir):
    """Windows that users of torch.profiler expect (field case T01)."""
    text = "0 0 0 0 5 0 100\n0 0 0 1 10 0 100\n2 0 1 1 3 2 100\n"
    dump = subprocess.run(
        [build_dir / "bin" / "gpubusy_schedule_dump"], input=text, capture_output=True, text=True,
        check=True,
    )
    a, b, c = dump.stdout.splitlines()
    assert a == "RRRRS" * 20
    assert b[1:11] == "R" * 9 + "S" and b.count("S") == 9 and b[88 + 10] == "S"
    assert [i for i, letter in enumerate(c) if letter in "RS"] == [4, 5, 6, 9, 10, 11]
