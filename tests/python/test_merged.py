# SPDX-License-Identifier: Apache-2.0
"""Native and Python frames in one stack, in every interpreter that is installed."""
import os
import platform
import subprocess

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "merged.py")
CASES = ["depths", "slots", "generators", "asyncio", "threads", "interpreters"]
pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"),
                                reason="native stacks need x86-64")


def run(command, **environment):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, errors="replace",
                          env={**os.environ, **environment})


def passes(command, **environment):
    out = run(command, **environment)
    assert out.returncode == 0, out.stdout + out.stderr
    last = out.stdout.splitlines()[-1]
    assert last.startswith("ok"), out.stdout
    return out.stdout, int(last.split()[1])


@pytest.mark.parametrize("case", CASES)
def test_case(python, probe, case):
    text, checks = passes([python, "-X", "utf8", SCRIPT, probe, case])
    if text.startswith("skipped"):
        pytest.skip(text.splitlines()[0])
    assert checks > 5


@pytest.fixture(scope="session")
def greenlets(tmp_path_factory):
    """A folder with the greenlet package for an interpreter."""
    known = {}

    def folder(python):
        if python not in known:
            known[python] = path = str(tmp_path_factory.mktemp("greenlet"))
            try:
                has = run([python, "-c", "import greenlet"]).returncode == 0
                out = None if has else run([python, "-m", "pip", "install", "--quiet",
                                            "--only-binary=:all:", "--target", path, "greenlet"])
            except subprocess.TimeoutExpired:
                pytest.skip("greenlet: pip did not end")
            if out is not None and out.returncode != 0:
                pytest.skip("greenlet cannot be had: " + out.stderr.strip()[-200:])
        return known[python]
    return folder


def test_greenlets(python, probe, greenlets):
    text, checks = passes([python, "-X", "utf8", SCRIPT, probe, "greenlets"],
                          PYTHONPATH=greenlets(python))
    assert checks > 20, text


EMBEDDED = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <wchar.h>
// argv: libpython, home, script and its arguments
int main(int argc, char** argv) {
  void* python = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
  if (!python) { puts(dlerror()); return 9; }
  wchar_t* (*decode)(const char*, void*) = dlsym(python, "Py_DecodeLocale");
  void (*set_home)(wchar_t*) = dlsym(python, "Py_SetPythonHome");
  int (*run)(int, wchar_t**) = dlsym(python, "Py_Main");
  wchar_t* arguments[16];
  arguments[0] = decode("embedded", 0);
  for (int i = 3; i < argc; ++i) arguments[i - 2] = decode(argv[i], 0);
  set_home(decode(argv[2], 0));
  return run(argc - 2, arguments);
}
"""


@pytest.fixture
def embedded(python, tmp_path):
    """A C program that loads the interpreter as a library."""
    ask = ("import glob, os, sys, sysconfig; print(sys.base_prefix);"
           "print(*glob.glob(os.path.join(sysconfig.get_config_var('LIBDIR') or '',"
           " sysconfig.get_config_var('INSTSONAME') or '-')))")
    home, *libraries = run([python, "-c", ask]).stdout.split()
    libraries = [f for f in libraries if ".so" in f]
    if not libraries:
        pytest.skip("this Python is not a library")
    source, program = tmp_path / "embed.c", tmp_path / "embed"
    source.write_text(EMBEDDED)
    subprocess.run(["cc", source, "-o", program, "-ldl"], check=True)
    return [str(program), libraries[0], home]


def test_embedded(embedded, probe):
    _, checks = passes([*embedded, SCRIPT, probe, "embedded"])
    assert checks > 20


def test_stress(python, probe):
    """The long run is the same with more captures."""
    libraries = os.path.join(os.path.dirname(os.path.dirname(probe)), "tests", "native", "libraries")
    if not os.path.exists(libraries):
        pytest.skip("the libraries of tests/native are not built")
    _, captures = passes([python, os.path.join(HERE, "merged_stress.py"), probe, libraries, "500000"])
    assert captures >= 500000
