# SPDX-License-Identifier: Apache-2.0
"""Every interpreter that is installed, every case of inside.py, each in a process of its own."""
import os
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = ["recursion", "generators", "asyncio", "threads", "race", "shapes", "names", "reuse",
         "offsets", "lines", "seccomp", "interpreters",
         "gil", "fork", "refusal", "foreign", "exit", "daemon", "unknown", "optimizer", "bench"]


def run(python, *args, **kwargs):
    return subprocess.run([python, "-X", "utf8", *args], capture_output=True, text=True,
                          timeout=300, errors="replace", **kwargs)


@pytest.mark.parametrize("case", CASES)
def test_case(python, probe, case):
    out = run(python, os.path.join(HERE, "inside.py"), probe, case)
    assert out.returncode == 0, out.stdout + out.stderr
    assert out.stdout.splitlines()[-1].startswith("ok"), out.stdout
    if case == "exit":
        assert "at exit: 0" in out.stderr
    if case == "bench":
        print(out.stdout)


def test_daemon_threads_at_the_end(python, probe):
    for _ in range(10):
        out = run(python, os.path.join(HERE, "inside.py"), probe, "daemon")
        assert out.returncode == 0, out.stderr


def test_no_python(probe):
    """A process without an interpreter: nothing found, nothing broken."""
    program = ("#include <dlfcn.h>\n#include <stdio.h>\nint main(int c, char** v) {\n"
               "  void* h = dlopen(v[1], RTLD_NOW); if (!h) { puts(dlerror()); return 9; }\n"
               "  int (*probe)(void) = (int (*)(void))dlsym(h, \"gb_probe\");\n"
               "  unsigned (*capture)(void) = (unsigned (*)(void))dlsym(h, \"gb_capture\");\n"
               "  for (int i = 0; i < 1000; ++i) if (capture() != 0) return 1;\n"
               "  return probe();\n}\n")
    import tempfile
    with tempfile.TemporaryDirectory() as d:
        source = os.path.join(d, "plain.c")
        with open(source, "w") as f:
            f.write(program)
        exe = os.path.join(d, "plain")
        subprocess.run(["cc", source, "-o", exe, "-ldl"], check=True)
        out = subprocess.run([exe, probe], capture_output=True, text=True)
        assert out.returncode == 0, (out.returncode, out.stdout)
