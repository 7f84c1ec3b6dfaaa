# SPDX-License-Identifier: Apache-2.0
"""Names and lines in traces, of a program that was recorded by the launcher: with its files, with
copies of them, with what was kept, and without."""

import gzip
import json
import re
import subprocess

import pytest

SOURCE = """
extern "C" int cudaDeviceSynchronize();
static inline __attribute__((always_inline)) void inlined() {
  cudaDeviceSynchronize();  // INLINED
  asm volatile("");
}
namespace job {
__attribute__((noinline)) static void worker(int n) {
  if (n > 0) {
    worker(n - 1);  // WORKER 1
  } else {
    inlined();  // WORKER 0
  }
  asm volatile("");
}
}
int main() {
  job::worker(1);  // MAIN
}
"""


def line_of(mark):
    (line,) = [i for i, text in enumerate(SOURCE.splitlines(), 1) if text.endswith("// " + mark)]
    return line


class Sample:
    def __init__(self, gpubusy, run, programs, directory):
        self.gpubusy, self._run, self.directory = gpubusy, run, directory
        self.programs = programs
        self.program = directory / "place" / "sample"
        self.program.parent.mkdir()
        self.out = directory / "out"
        self.build(SOURCE)
        result = run([gpubusy, "-o", self.out, "--", self.program],
                     env={"GPUBUSY_NATIVE_STACKS": "1", "GPUBUSY_STEP": "none"})
        assert result.returncode == 0, result.stderr
        self.text = result.stderr
        (self.kept,) = self.out.glob("*.gpubusy.symbols")

    def build(self, source):
        self.source = self.directory / "sample.cpp"
        self.source.write_text(source)
        toy = self.programs / "libgpubusy_test_toy_cuda.so"
        if not toy.exists():
            pytest.skip("tests/programs is not built (no CUDA headers)")
        subprocess.run(["g++", "-g", "-O2", self.source, toy, f"-Wl,-rpath,{self.programs}", "-o",
                        self.program], check=True)

    def stack(self, path=None):
        if path is None:
            (path,) = self.out.glob("*.trace.json.gz")
        events = json.loads(gzip.open(path).read())["traceEvents"]
        stacks = [e["args"]["Native stack"] for e in events if "Native stack" in e.get("args", {})]
        assert len(stacks) == 1
        return stacks[0].split(";")

    def export(self, *options, env=None):
        """Stack, and what was said."""
        result = self._run([self.gpubusy, "export", self.out, *options], env=env)
        assert result.returncode == 0, result.stderr
        return self.stack(result.stdout.strip()), result.stderr

    def frames(self, lines=True):
        where = (lambda mark: f" ({self.source}:{line_of(mark)})") if lines else lambda mark: ""
        return [*(["inlined" + where("INLINED")] if lines else []),
                "job::worker(int)" + where("WORKER 0"),
                "job::worker(int)" + where("WORKER 1"), "main" + where("MAIN")]


@pytest.fixture
def sample(gpubusy, run, programs, tmp_path):
    return Sample(gpubusy, run, programs, tmp_path)


def named(stack):
    """Without parameters of inlined functions, which DWARF does not always have."""
    return [re.sub(r"^inlined\(\)", "inlined", frame) for frame in stack]


def test_names_and_lines(sample):
    assert named(sample.stack())[:4] == sample.frames()
    assert "sample:" not in sample.text


def test_copies_in_a_directory(sample):
    sample.kept.unlink()
    copies = sample.directory / "copies"
    copies.mkdir()
    sample.program.rename(copies / "sample")
    stack, said = sample.export("--symbols", sample.directory / "nowhere", "--symbols", copies)
    assert named(stack)[:4] == sample.frames()
    assert "sample:" not in said


def test_kept_names_are_enough(sample):
    before = sample.kept.read_bytes()
    sample.program.unlink()
    stack, said = sample.export()
    assert named(stack)[:4] == sample.frames()
    assert "sample:" not in said
    assert sample.kept.read_bytes() == before


def test_without_anything_the_addresses_stay(sample):
    sample.kept.unlink()
    sample.program.unlink()
    stack, said = sample.export()
    assert all(re.fullmatch(r"sample\+0x[0-9a-f]+", frame) for frame in stack[:3]), stack
    # main, worker twice, _start
    assert "sample: its file is not here (4 native addresses)" in said


@pytest.mark.parametrize("kept", [b"", b"\0\xff garbage\n\n", b"gpubusy symbols 1\nmodule \n\t\t\t"])
def test_kept_names_that_somebody_broke(sample, kept):
    sample.kept.write_bytes(kept)
    stack, _ = sample.export()
    assert named(stack)[:4] == sample.frames()
    assert sample.kept.read_bytes().startswith(b"gpubusy symbols 1\nrecording ")


def test_a_program_that_was_built_anew_is_refused(sample):
    sample.kept.unlink()
    sample.build(SOURCE.replace("namespace job", "int more(int n) { return n * 3; }\nnamespace job"))
    stack, said = sample.export()
    assert all(re.fullmatch(r"sample\+0x[0-9a-f]+", frame) for frame in stack[:3]), stack
    assert "sample: it has changed since the recording (4 native addresses)" in said


def test_without_libdw_there_are_names(sample, compile_c):
    sample.kept.unlink()
    broken = sample.directory / "broken"
    broken.mkdir()
    compile_c("libdw", "int nothing;", "-shared", "-fPIC")
    (sample.directory / "libdw").rename(broken / "libdw.so.1")
    stack, said = sample.export(env={"LD_LIBRARY_PATH": str(broken)})
    assert stack[:3] == sample.frames(lines=False)
    assert said.count("source lines need libdw.so.1, which is not on this machine") == 1


def test_nothing_of_it_is_linked(gpubusy):
    needed = subprocess.run(["readelf", "-d", gpubusy], capture_output=True, text=True).stdout
    assert "NEEDED" in needed
    assert not re.search(r"lib(dw|elf|lzma)\.", needed)
