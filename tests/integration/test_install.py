# SPDX-License-Identifier: Apache-2.0
"""What `cmake --install` puts somewhere works there."""

import subprocess


def test_installed_programs_find_their_libraries(build_dir, run, tmp_path, cuda_program):
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", build_dir, "--prefix", prefix], check=True,
                   capture_output=True)
    result = run([prefix / "bin" / "gpubusy", "-o", "out", *cuda_program])
    assert result.returncode == 3
    assert "1 process loaded the library, 1 recorded" in result.stderr
    command = [prefix / "bin" / "gpubusy-sim", prefix / "bin" / "gpubusy", "-o", "simulated", "sh",
               "-c", "grep -o 'lib/libgpubusy[a-z_]*.so' /proc/self/maps | sort -u"]
    result = run(command)
    assert result.returncode == 0
    assert result.stdout.split() == ["lib/libgpubusy.so", "lib/libgpubusy_sim.so"]
