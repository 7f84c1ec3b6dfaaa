# SPDX-License-Identifier: Apache-2.0
"""`gpubusy doctor` on this machine, whatever it has."""

import json
import resource

import pytest


def checks(result):
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert set(document) == {"schema", "version", "will_record", "checks"}
    for check in document["checks"]:
        assert set(check) == {"id", "title", "status", "found", "why", "cure"}
        assert check["status"] in ("ok", "warning", "failure", "not known")
        if check["status"] in ("failure", "warning"):
            assert check["cure"], check
    failed = [c["id"] for c in document["checks"] if c["status"] == "failure"]
    assert document["will_record"] == (not failed)
    assert result.returncode == (1 if failed else 0)
    return {check["id"]: check for check in document["checks"]}


def test_says_that_the_library_is_well_and_changes_nothing(gpubusy, run, tmp_path):
    def processor_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    begin = processor_seconds()
    found = checks(run([gpubusy, "doctor", "--json"]))
    # Of its own time: how long it takes besides is the machine's.
    assert processor_seconds() - begin < 2
    for check in ("library", "loading", "exports", "glibc", "settings", "output"):
        assert found[check]["status"] in ("ok", "warning"), found[check]
    version = run([gpubusy, "--version"]).stdout.split()[1]
    assert version in found["loading"]["found"]
    assert not list(tmp_path.iterdir())


def test_library_that_cannot_be_loaded(gpubusy, run, tmp_path):
    (tmp_path / "libgpubusy.so").write_text("no library")
    found = checks(run([gpubusy, "doctor", "--json"],
                       env={"GPUBUSY_INTERNAL_LIBRARY": str(tmp_path / "libgpubusy.so")}))
    assert found["loading"]["status"] == "failure"
    assert "LD_PRELOAD" in found["loading"]["found"]
    assert found["exports"]["status"] == "failure"


def test_settings_are_judged_and_told_apart_from_loading(gpubusy, run):
    found = checks(run([gpubusy, "doctor", "--json"], env={"GPUBUSY_ACTVE": "3"}))
    assert found["settings"]["status"] == "failure"
    assert "GPUBUSY_ACTIVE" in found["settings"]["found"]
    assert found["loading"]["status"] == "ok"
    found = checks(run([gpubusy, "doctor", "--json", "--step", "call:cudaGraphLunch"]))
    assert "call:cudaGraphLaunch" in found["settings"]["found"]
    found = checks(run([gpubusy, "doctor", "--json", "-o", "/dev/null/no/such/parent"]))
    assert found["output"]["status"] == "failure"
    found = checks(run([gpubusy, "doctor", "--json", "-o", "no/such/parent"]))
    assert found["output"]["status"] in ("ok", "warning")


def test_command_is_judged_and_not_run(gpubusy, run, tmp_path, i386_program):
    found = checks(run([gpubusy, "doctor", "--json", "--", "touch", "trace"]))
    assert found["command"]["status"] == "ok" and not (tmp_path / "trace").exists()
    found = checks(run([gpubusy, "doctor", "--json", i386_program(0)]))
    assert found["command"]["status"] == "failure" and "32-bit" in found["command"]["found"]
    found = checks(run([gpubusy, "doctor", "--json", "no-such-program"]))
    assert found["command"]["status"] == "failure"
    found = checks(run([gpubusy, "doctor", "--json", "env", "-i", "true"]))
    assert found["place"]["status"] == "failure" and "gpubusy" in found["place"]["cure"]


def test_pytorch_is_found_without_being_imported(gpubusy, run, tmp_path):
    version = "python3.11"
    site = tmp_path / "venv" / "lib" / version / "site-packages"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text(
        "__version__ = '2.6.0+cpu'\ncuda: Optional[str] = None\n")
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir()
    (tmp_path / version).write_bytes(open("/bin/sh", "rb").read())
    (tmp_path / version).chmod(0o755)
    python.symlink_to(tmp_path / version)
    (tmp_path / "venv" / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    found = checks(run([gpubusy, "doctor", "--json", str(python), "train.py"]))
    assert found["python"]["status"] == "ok" and "3.11" in found["python"]["found"]
    assert found["torch"]["status"] == "failure" and "2.6.0+cpu" in found["torch"]["found"]


def test_on_the_simulator_it_says_so_and_all_is_well(gpubusy, build_dir, run):
    simulator = build_dir / "bin" / "gpubusy-sim"
    if not simulator.exists():
        pytest.skip("no simulator in this build")
    result = run([simulator, gpubusy, "doctor", "--json", "true"])
    found = checks(result)
    assert result.returncode == 0, result.stdout
    assert "simulated" in found["device"]["found"]
    assert "driver" not in found


def test_text_and_bad_options(gpubusy, run):
    text = run([gpubusy, "doctor"], env={"LANG": "en_US.ISO-8859-1", "LC_ALL": ""}).stdout
    assert text.isascii() and "ok library" in text and "A recording will" in text
    assert run([gpubusy, "doctor", "--quiet"]).returncode == 125
    assert run([gpubusy, "doctor", "--help"]).returncode == 0
