# SPDX-License-Identifier: Apache-2.0
"""gpubusy-sim: environment, parameters, refusals, and that it becomes the program."""

import os
import shutil
import signal
import subprocess

import pytest


@pytest.fixture
def command(gpubusy_sim, clean_environment, tmp_path):
    def command(*words, env=None, program=gpubusy_sim):
        return subprocess.run(
            [program, *words], env={**clean_environment, **(env or {})}, capture_output=True,
            text=True, timeout=60, cwd=tmp_path)

    return command


def test_help_and_parameters(command):
    assert "usage: gpubusy-sim" in command("--help").stdout
    listing = command("--list-parameters")
    assert listing.returncode == 0
    assert "launch_latency_us" in listing.stdout and "default: 1024" in listing.stdout


@pytest.mark.parametrize("words, message", [
    ([], "no command was given"),
    (["--nonsense"], "there is no option --nonsense"),
    (["--set", "warp_drive=1", "true"], "there is no parameter of that name"),
    (["--set", "devices", "true"], "NAME=VALUE is expected"),
    (["--devices"], "needs a value"),
    (["--devices", "0", "true"], "GPUBUSY_SIM_DEVICES: '0' is not allowed: a number from 1 to 16"),
    (["--set", "h2d_gbps=fast", "true"], "GPUBUSY_SIM_H2D_GBPS: 'fast' is not allowed"),
    (["--set", "fail=cudaMalloc", "true"], "NAME@N=VALUE"),
    (["--set", "kernel_table=missing.txt", "true"], "a file that can be read"),
    (["--config", "missing.conf", "true"], "missing.conf' is not allowed"),
])
def test_refusals(command, words, message):
    result = command(*words)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_bad_environment_and_config(command, tmp_path):
    result = command("true", env={"GPUBUSY_SIM_QUEUE_DEPTH": "-3"})
    assert result.returncode == 2 and "GPUBUSY_SIM_QUEUE_DEPTH: '-3'" in result.stderr
    (tmp_path / "c").write_text("devices = 2 # fine\nmagic = 3\n")
    result = command("--config", "c", "true")
    assert result.returncode == 2 and "c:2: magic: '3'" in result.stderr


def test_environment_wins_over_config(command, sim_work, tmp_path):
    (tmp_path / "c").write_text("fail = cudaMalloc@1=2\n")
    assert command("--config", "c", sim_work, "runtime", "1").returncode == 1
    assert command("--config", "c", "--set", "fail=cudaMalloc@9=2", sim_work, "runtime",
                   "1").returncode == 0


def test_library_reports_and_uses_the_default(command, build_dir, sim_work):
    library = build_dir / "lib" / "libgpubusy_sim.so"
    result = command("runtime", "1", program=sim_work, env={
        "LD_PRELOAD": str(library), "LD_LIBRARY_PATH": str(build_dir / "lib" / "gpubusy-sim"),
        "GPUBUSY_SIM_DEVICES": "many"})
    assert result.returncode == 0
    assert result.stderr == (
        "gpubusy-sim: GPUBUSY_SIM_DEVICES: 'many' is not allowed: a number from 1 to 16;"
        " the default is used\n")


def test_without_it_the_program_does_not_start(command, sim_work):
    assert command("runtime", "1", program=sim_work).returncode != 0


def test_exit_code_signal_and_process_id(command, gpubusy_sim, clean_environment):
    assert command("sh", "-c", "exit 7").returncode == 7
    assert command("sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert command("no-such-program").returncode == 127
    process = subprocess.Popen([gpubusy_sim, "sh", "-c", "echo $$"], env=clean_environment,
                               stdout=subprocess.PIPE, text=True)
    assert process.communicate(timeout=60)[0].strip() == str(process.pid)


def test_preloads_are_kept_and_come_first(command, build_dir):
    library = str((build_dir / "lib" / "libgpubusy_sim.so").resolve())
    names = library.replace("libgpubusy_sim.so", "gpubusy-sim")
    ours = f"{library}:{names}/libcupti.so.13"
    show = ["sh", "-c", "echo $LD_PRELOAD"]
    assert command(*show).stdout.strip() == ours
    libc = "libm.so.6"
    assert command(*show, env={"LD_PRELOAD": libc}).stdout.strip() == f"{libc}:{ours}"
    # Inside itself it adds nothing.
    nested = command("sh", "-c", "exec \"$0\" sh -c 'echo $LD_PRELOAD'",
                     str(build_dir / "bin" / "gpubusy-sim"))
    assert nested.stdout.strip() == ours
    result = command("sh", "-c", "echo $LD_LIBRARY_PATH:$TRITON_LIBCUDA_PATH",
                     env={"LD_LIBRARY_PATH": "/somewhere"})
    assert result.stdout.strip() == f"/somewhere:{names}:{names}"


def test_moved_installation_and_paths_that_cannot_work(command, build_dir, tmp_path, sim_work):
    for name, works in (("fine", True), ("with space", False), ("with:colon", False)):
        place = tmp_path / name
        (place / "bin").mkdir(parents=True)
        shutil.copy(build_dir / "bin" / "gpubusy-sim", place / "bin")
        shutil.copytree(build_dir / "lib" / "gpubusy-sim", place / "lib" / "gpubusy-sim",
                        symlinks=True)
        shutil.copy(build_dir / "lib" / "libgpubusy_sim.so", place / "lib")
        result = command(sim_work, "runtime", "5", program=str(place / "bin" / "gpubusy-sim"))
        if works:
            assert result.returncode == 0, result.stderr
        else:
            assert result.returncode == 2
            assert "cannot express a path with a space or a colon" in result.stderr
    os.remove(tmp_path / "fine" / "lib" / "libgpubusy_sim.so")
    result = command("true", program=str(tmp_path / "fine" / "bin" / "gpubusy-sim"))
    assert result.returncode == 2 and "libgpubusy_sim.so is not in" in result.stderr


def test_silent_unless_asked(command, sim_work):
    result = command(sim_work, "runtime", "10")
    assert result.stdout == "" and result.stderr == ""
