# SPDX-License-Identifier: Apache-2.0
"""What a recording and its report say of how the program came by CUDA, and of what was not seen."""

import json
import shutil
import struct
import subprocess
import sys

import pytest

NOTHING = "No CUDA call was intercepted"


def recordings(directory):
    return sorted(directory.glob("*.gpubusy"))


def records(path):
    """(type, value, body) of each record, as recording/format.hpp has them."""
    data = path.read_bytes()
    header_size, block_size = struct.unpack_from("<II", data, 12)
    for begin in range(header_size, len(data), block_size):
        if data[begin:begin + 4] != b"GBLK":
            continue
        at = begin + 64
        end = at + struct.unpack_from("<I", data, begin + 12)[0]
        while at < end:
            kind, size, value = struct.unpack_from("<HHI", data, at)
            yield kind, value, data[at + 8:at + size]
            at += size


def modules(path):
    """path -> (begin, end, base, build id)"""
    found = {}
    for kind, _, body in records(path):
        if kind == 27:
            _, begin, end, base, length, id_length, flags, _ = struct.unpack_from("<QQQQHBBI", body)
            assert flags == 0
            name = body[40:40 + length].decode()
            assert name not in found, "each module once"
            found[name] = (begin, end, base, body[40 + length:40 + length + id_length].hex())
    return found


@pytest.fixture
def report(build_dir):
    def report(directory, *options):
        return subprocess.run([build_dir / "bin" / "gpubusy", "report", *options, directory],
                              check=True, capture_output=True, text=True).stdout

    return report


@pytest.fixture
def coverage(report, tmp_path):
    def coverage():
        [process] = json.loads(report(tmp_path / "out", "--json"))["processes"]
        return process["coverage"]

    return coverage


@pytest.fixture
def loads(programs):
    """loads("deep", "user") is the command that opens the library "user" so."""
    paths = {
        "driver": programs / "driver" / "libcuda.so.1",
        "user": programs / "libgpubusy_test_driver_user.so",
        "embeds": programs / "libgpubusy_test_embeds_runtime.so",
        "looks": programs / "libgpubusy_test_driver_looks.so",
        "mentions": programs / "libgpubusy_test_mentions_runtime.so",
    }
    return lambda *words: [programs / "loads_libraries", *(paths.get(w, w) for w in words)]


def test_calls_of_a_linked_runtime(programs, run_preloaded, coverage, report, tmp_path):
    assert run_preloaded([programs / "exit_ways", "return"]).returncode == 3
    layers = coverage()["layers"]
    assert layers["runtime"]["calls"] == layers["runtime"]["calls_of_linked_functions"] == 1
    assert layers["runtime"]["functions_by_dlsym"] == 0
    assert layers["driver"]["calls"] == 0
    assert "Runtime API: 1 call (linked); driver API: 0 calls." in report(tmp_path / "out")


def test_functions_asked_of_the_driver(programs, run_preloaded, coverage):
    run_preloaded([programs / "proc_address", programs / "driver" / "libcuda.so.1"],
                  GPUBUSY_STEP="none")
    driver = coverage()["layers"]["driver"]
    assert driver["functions_by_dlsym"] == 1  # cuGetProcAddress_v2
    assert driver["functions_by_cuGetProcAddress"] == 5  # one of the six is older than the table
    assert driver["calls"] == 9 and driver["calls_of_linked_functions"] == 0


def test_functions_found_by_version(programs, run_preloaded, coverage):
    run_preloaded([programs / "dlvsym_calls", programs / "libgpubusy_test_cuda_12.so"])
    runtime = coverage()["layers"]["runtime"]
    assert runtime["functions_by_dlvsym"] == 1 and runtime["functions_by_dlsym"] == 0


def test_layers_in_the_trace(programs, run_preloaded, build_dir, tmp_path):
    run_preloaded([programs / "proc_address", programs / "driver" / "libcuda.so.1"],
                  GPUBUSY_STEP="none")
    subprocess.run([build_dir / "bin" / "gpubusy", "export", "--no-compress", tmp_path / "out"],
                   check=True, capture_output=True)
    [trace] = (tmp_path / "out").glob("*.pt.trace.json")
    layers = json.loads(trace.read_text())["gpubusy"]["layers"]
    assert layers["runtime"]["calls"] == 0
    assert layers["driver"]["calls"] == 9
    assert layers["driver"]["functions by cuGetProcAddress"] == 5


def test_loaded_modules_are_recorded(run_preloaded, loads, library, tmp_path):
    """All objects of the process with what a symboliser needs: as /proc and the files have them."""
    code = (
        "import ctypes, sys\n"
        "for path in sys.argv[1:]: ctypes.CDLL(path).work()\n"
        "print(open('/proc/self/maps').read())\n"
    )
    _, user, embeds = loads("user", "embeds")
    result = run_preloaded([sys.executable, "-c", code, user, embeds])
    assert result.returncode == 0, result.stderr
    [path] = recordings(tmp_path / "out")
    found = modules(path)
    mapped = {}
    for line in result.stdout.decode().splitlines():
        words = line.split(None, 5)
        if len(words) == 6 and words[5].startswith("/"):
            begin, end = (int(n, 16) for n in words[0].split("-"))
            low, high = mapped.get(words[5], (begin, end))
            mapped[words[5]] = (min(low, begin), max(high, end))
    for name in (str(user), str(embeds), str(library)):
        begin, end, base, build_id = found[name]
        low, high = mapped[name]
        assert low == begin == base and begin < high <= (end + 4095) // 4096 * 4096
        notes = subprocess.run(["readelf", "-n", name], check=True, capture_output=True, text=True)
        assert f"Build ID: {build_id}" in notes.stdout and len(build_id) == 40
    assert "" in found, "the program itself"
    begins = {begin for begin, *_ in found.values()}  # names may be links
    assert {name for name, (low, _) in mapped.items() if ".so" in name and low not in begins} == set()


def test_runtime_inside_a_library(run_preloaded, loads, coverage, report, tmp_path):
    """A file with a static cudart is named; one that only mentions its names is not."""
    run_preloaded(loads("embeds", "mentions", "user"))
    seen = coverage()
    assert [p.rsplit("/", 1)[1] for p in seen["embedded_runtimes"]] == [
        "libgpubusy_test_embeds_runtime.so"]
    assert seen["modules"] > 5 and seen["modules_not_read"] == []
    # The driver is there, linked, and nobody asked for a function of it by name.
    assert seen["driver_loaded"] is True and seen["embedded_runtimes_unseen"] is True
    text = " ".join(report(tmp_path / "out").split())
    assert "With a CUDA runtime of their own: libgpubusy_test_embeds_runtime.so." in text
    assert "if they did work, it is not in here" in text


def test_files_that_are_gone_or_others_now(run_preloaded, loads, coverage, tmp_path):
    _, embeds, mentions, user = loads("embeds", "mentions", "user")
    gone, other = tmp_path / "libgone.so", tmp_path / "libother.so"
    shutil.copy(embeds, gone)
    shutil.copy(mentions, other)
    run_preloaded([*loads(), gone, other, user])
    gone.unlink()
    shutil.copy(embeds, other)
    seen = coverage()
    assert seen["embedded_runtimes"] == []
    assert {m["path"]: m["why"] for m in seen["modules_not_read"]} == {
        str(gone): "No such file or directory", str(other): "it is another file now"}


def test_driver_without_a_call(gpubusy, run, loads, report, tmp_path, run_plain):
    """Calls that go round the hooks: never an empty report that looks fine."""
    command = loads("deep", "user")
    plain = run_plain(command)
    result = run([gpubusy, "-o", tmp_path / "out", "--", *command])
    assert (result.returncode, result.stdout.encode()) == (plain.returncode, plain.stdout)
    first = " ".join(result.stderr.split("\n\n")[0].split())
    [path] = recordings(tmp_path / "out")
    assert path.stat().st_size < 100_000
    assert first.startswith(f"{NOTHING}, although libcuda.so.1 was loaded by pid ")
    assert "loads_libraries deep" in first and "RTLD_DEEPBIND" in first
    assert report(tmp_path / "out").startswith(f"{NOTHING}, although libcuda.so.1 was loaded by pid")
    unseen = json.loads(report(tmp_path / "out", "--json"))["driver_loaded_without_calls"]
    assert len(unseen) == 1 and "loads_libraries" in unseen[0]["command"]


def test_driver_without_a_call_and_without_the_launcher(run_preloaded, loads, report, tmp_path):
    result = run_preloaded(loads("idle", "driver"))
    assert (result.returncode, result.stderr) == (0, b"")
    assert report(tmp_path / "out").startswith(f"{NOTHING}, although libcuda.so.1 was loaded by pid")


def test_the_same_library_without_the_flag_is_seen(run_preloaded, loads, coverage):
    run_preloaded(loads("user"))
    assert coverage()["layers"]["driver"]["calls_of_linked_functions"] == 1


@pytest.mark.parametrize("words", [[], ["embeds"], ["idle", "driver", "fork"]])
def test_no_recording_of_helpers(run_preloaded, loads, tmp_path, words):
    """Without the driver nothing is written; a child has it from its parent."""
    result = run_preloaded(loads(*words))
    assert (result.returncode, result.stderr) == (0, b"")
    assert not (tmp_path / "out").exists()


def test_a_program_that_only_looks_whether_there_is_a_gpu(run_preloaded, loads, tmp_path):
    """cuInit reached a hook: what follows would have, too."""
    assert run_preloaded(loads("looks")).stdout == b"0\n"
    assert not (tmp_path / "out").exists()
    assert run_preloaded(loads("deep", "looks")).stdout == b"0\n"
    assert len(recordings(tmp_path / "out")) == 1


def test_no_driver_no_word(gpubusy, run, tmp_path):
    result = run([gpubusy, "-o", tmp_path / "out", "--", "/bin/true"])
    assert "libcuda" not in result.stderr and not recordings(tmp_path / "out")


def test_output_that_cannot_be_written_is_not_told_of_silence(run_preloaded, loads, tmp_path):
    (tmp_path / "file").write_text("")
    result = run_preloaded(loads("idle", "driver"), output=tmp_path / "file" / "out")
    assert (result.returncode, result.stderr) == (0, b"")
