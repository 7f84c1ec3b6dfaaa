# SPDX-License-Identifier: Apache-2.0
"""GPUBUSY_NATIVE_STACKS: each call's native stack is the program's own."""

import subprocess

import pytest

PROGRAM, LIBRARIES = "native_frames", "tests/native/libraries"


@pytest.fixture
def record(programs, build_dir, run_preloaded, clean_environment, tmp_path):
    if not (programs / PROGRAM).exists() or not (build_dir / LIBRARIES).exists():
        pytest.skip(f"{PROGRAM} or its libraries are not built")

    def record(**settings):
        result = run_preloaded([programs / PROGRAM, build_dir / LIBRARIES], GPUBUSY_STEP="none",
                               GPUBUSY_PYTHON_STACKS="0", **settings)
        assert result.returncode == 0, result.stderr
        known = [line.split()[1:] for line in result.stdout.decode().splitlines()]
        (recording,) = (tmp_path / "out").glob("*.gpubusy")
        dump = subprocess.run([build_dir / "bin" / "gpubusy_stack_dump", recording], check=True,
                              capture_output=True, text=True, env=clean_environment, timeout=60)
        return known, [line.split() for line in dump.stdout.splitlines()]

    return record


def test_stacks_are_the_programs(record):
    known, stacks = record(GPUBUSY_NATIVE_STACKS="1")
    assert len(stacks) == len(known) == 14
    cut = []
    for index, (truth, stack) in enumerate(zip(known, stacks)):
        # The first frame is the one that calls CUDA; its own return address is the next.
        rest = iter(stack[1:])
        assert all(address in rest for address in truth), (index, truth, stack)
        if stack[-1] == "...":
            cut.append(index)
    # makecontext() gives a fiber no caller.
    assert cut == [11]


def test_on_by_default(record):
    known, stacks = record()
    assert all(truth[0] in stack for truth, stack in zip(known, stacks, strict=True))


def test_can_be_switched_off(record):
    _, stacks = record(GPUBUSY_NATIVE_STACKS="0")
    assert stacks == [[]] * 14
