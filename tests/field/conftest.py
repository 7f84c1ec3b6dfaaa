# SPDX-License-Identifier: Apache-2.0
"""Field cases: programs as they were reported, run with and without gpubusy (docs/field-cases.md)."""

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "simulator"))

import truth  # noqa: E402

from field_checks import crossings, parse_strictly  # noqa: E402


class Directory:
    """What a run left in its output directory."""

    def __init__(self, path, build_dir, environment):
        self.path, self._gpubusy, self._environment = path, build_dir / "bin" / "gpubusy", environment

    @property
    def recordings(self):
        return sorted(self.path.glob("*.gpubusy")) if self.path.exists() else []

    def report(self):
        result = subprocess.run([self._gpubusy, "report", "--json", self.path],
                                env=self._environment, capture_output=True, timeout=120)
        assert result.stdout, result.stderr
        return parse_strictly(result.stdout)

    @property
    def processes(self):
        return self.report()["processes"]

    @property
    def process(self):
        (process,) = self.processes
        return process

    def text(self):
        return subprocess.run([self._gpubusy, "report", self.path], env=self._environment,
                              capture_output=True, check=True, timeout=120).stdout.decode("utf-8")

    def traces(self):
        """The traces by name, each checked as far as every trace can be (T03, T04)."""
        traces = {}
        for path in sorted(self.path.glob("*.pt.trace.json*")):
            data = path.read_bytes()
            trace = parse_strictly(gzip.decompress(data) if path.suffix == ".gz" else data)
            assert not crossings(trace), (path, crossings(trace)[:3])
            traces[path.name] = trace
        return traces


class Both:
    def __init__(self, plain, ours, out):
        self.plain, self.ours, self.out = plain, ours, out


@pytest.fixture(scope="session")
def gpubusy(build_dir):
    return build_dir / "bin" / "gpubusy"


@pytest.fixture(scope="session")
def field(programs):
    """Path of a program of tests/programs/field."""

    def path(name):
        found = programs / f"field_{name}"
        if not found.exists():
            pytest.skip("tests/programs is not built (no CUDA headers)")
        return found

    return path


@pytest.fixture
def toy_cuda(programs):
    return programs / "libgpubusy_test_toy_cuda.so"


@pytest.fixture
def run(tmp_path, clean_environment):
    def run(command, *, env=None, timeout=60, cwd=None, **more):
        more.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.run([str(word) for word in command],
                              env={**clean_environment, **(env or {})}, cwd=cwd or tmp_path,
                              timeout=timeout, capture_output=True, **more)

    return run


@pytest.fixture
def directory(tmp_path, build_dir, clean_environment):
    return lambda name="out": Directory(tmp_path / name, build_dir, clean_environment)


@pytest.fixture
def both(gpubusy, build_dir, run, directory):
    """Runs a command without and with the launcher; output, errors and exit code must be the same.

    simulate: on the simulated device, with a truth log of each run in tmp_path/truth-plain, -ours.
    """

    def both(command, *options, env=None, timeout=60, simulate=False, out="out", limit=None):
        def on_device(name, words):
            if not simulate:
                return words
            (directory(f"truth-{name}").path).mkdir(exist_ok=True)
            return [build_dir / "bin" / "gpubusy-sim", "--set", "context_ms=1", "--truth",
                    directory(f"truth-{name}").path, *words]

        plain = run(on_device("plain", command), env=env, timeout=timeout)
        words = [gpubusy, "-q", "-o", out, *options, "--", *command]
        ours = run(on_device("ours", words), env=env, timeout=limit or timeout)
        assert ours.stdout == plain.stdout
        # What quiet leaves: where there is no recording, why not, and who might still make one.
        own = [line for line in ours.stderr.splitlines(True)
               if re.match(rb"gpubusy: (nothing was recorded: |\d+ process(es)? of the program still)",
                           line)]
        assert len(own) <= (2 if b"nothing was recorded" in ours.stderr else 0)
        assert ours.stderr.replace(b"".join(own), b"") == plain.stderr
        assert ours.returncode == plain.returncode
        return Both(plain, ours, directory(out))

    return both


@pytest.fixture
def truth_logs(directory):
    return lambda name: truth.load_directory(directory(f"truth-{name}").path)
