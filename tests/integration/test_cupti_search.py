# SPDX-License-Identifier: Apache-2.0
"""Which libcupti is used in a process that has none itself."""

import json
import shutil
import subprocess

import pytest

ENABLED = {"1", "2", "4", "5", "10", "17", "39"}  # kinds, see runtime/cupti/client.cpp


@pytest.fixture
def search(programs, library, build_dir, clean_environment, tmp_path):
    """Runs the program with files put in place; gives what CUPTI was used, and the notices."""
    parts = programs / "cupti_search"

    def put(part, *names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(parts / f"lib{part}.so", tmp_path / name)

    def run(runtime, cuptis, version=13000, **variables):
        put("driver", "driver/libcuda.so.1")
        put("runtime", runtime)
        put("cupti", *cuptis)
        log, out = tmp_path / "log", tmp_path / "out"
        environment = {
            **{name: value for name, value in clean_environment.items()
               if name not in ("CUDA_HOME", "CUDA_PATH")},
            "LD_PRELOAD": str(library), "GPUBUSY_OUTPUT": str(out),
            "GPUBUSY_EXPORT": "0", "GPUBUSY_STEP": "none", "TEST_CUPTI_LOG": str(log),
            "TEST_CUDA_VERSION": str(version),
            **{name: value.format(tmp=tmp_path) for name, value in variables.items()},
        }
        environment["LD_LIBRARY_PATH"] = ":".join(
            filter(None, [str(tmp_path / "driver"), environment.get("LD_LIBRARY_PATH")]))
        result = subprocess.run([parts / "main", tmp_path / runtime], env=environment,
                                capture_output=True, text=True, timeout=30)
        assert (result.returncode, result.stdout, result.stderr) == (0, "0\n", "")
        used = [line.split(" ", 1) for line in log.read_text().splitlines()] if log.exists() else []
        if used:
            assert {kind for kind, _ in used} == ENABLED
            assert len({path for _, path in used}) == 1
        report = subprocess.run([build_dir / "bin" / "gpubusy", "report", "--json", out],
                                env=clean_environment, capture_output=True, text=True, timeout=30)
        notices = "\n".join(json.loads(report.stdout)["processes"][0]["notices"])
        path = used[0][1] if used else None
        return path and str((tmp_path / path).resolve().relative_to(tmp_path)), notices

    return run


@pytest.mark.parametrize("runtime, cupti", [
    ("venv/nvidia/cu13/lib/libcudart.so.13", "venv/nvidia/cu13/lib/libcupti.so.13"),
    ("venv/nvidia/cuda_runtime/lib/libcudart.so.12", "venv/nvidia/cuda_cupti/lib/libcupti.so.12"),
    ("cuda/lib64/libcudart.so.13", "cuda/extras/CUPTI/lib64/libcupti.so.13"),
    ("cuda/targets/x86_64-linux/lib/libcudart.so.12", "cuda/extras/CUPTI/lib64/libcupti.so.12"),
    ("cuda/lib64/libcudart.so.11.0", "cuda/extras/CUPTI/lib64/libcupti.so.11.8"),
])
def test_beside_the_runtime(search, runtime, cupti):
    used, notices = search(runtime, [cupti])
    assert used == cupti, notices


def test_in_cuda_home(search):
    cupti = "opt/cuda/extras/CUPTI/lib64/libcupti.so.13"
    used, notices = search("app/libcudart.so.13", [cupti], CUDA_HOME="{tmp}/opt/cuda")
    assert used == cupti, notices


def test_by_the_search_path(search):
    cupti = "somewhere/libcupti.so.13"
    used, notices = search("app/libcudart.so.13", [cupti], LD_LIBRARY_PATH="{tmp}/somewhere")
    assert used == cupti, notices


def test_as_asked_for(search):
    beside, asked = "app/libcupti.so.13", "mine/cupti-new.so"
    used, notices = search("app/libcudart.so.13", [beside, asked], GPUBUSY_CUPTI="{tmp}/mine/cupti-new.so")
    assert used == asked, notices


def test_not_newer_than_the_driver(search):
    """Driver 12: CUPTI 13 would not initialise."""
    used, notices = search("app/libcudart.so.12", ["app/libcupti.so.13", "app/libcupti.so.12"], 12080)
    assert used == "app/libcupti.so.12"


def test_none_is_said(search):
    # CUDA 11's, lest the machine that runs the tests have one.
    used, notices = search("app/libcudart.so.11.0", [], 11040)
    assert used is None
    assert "no libcupti was found" in notices


def test_one_that_cannot_be_loaded_is_said(search):
    used, notices = search("app/libcudart.so.13", [], GPUBUSY_CUPTI="{tmp}/not/there.so")
    assert used is None
    assert "GPUBUSY_CUPTI could not be loaded" in notices and "not/there.so" in notices


def test_not_looked_for_where_events_are_asked_for(search):
    used, notices = search("app/libcudart.so.13", ["app/libcupti.so.13"], GPUBUSY_DEVICE_TIME="events")
    assert used is None
    assert "CUPTI" not in notices
