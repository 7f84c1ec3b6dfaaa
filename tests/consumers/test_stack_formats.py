# SPDX-License-Identifier: Apache-2.0
"""Collapsed stacks and profiles of pprof, read by others than us."""

import gzip
import json
import re
import shutil
import subprocess

import pytest

WEIGHTS = {"device-time": "device_ms", "host-time": "host_ms", "launches": "launches",
           "idle": "idle_ms"}


@pytest.fixture(scope="module")
def gpubusy(build_dir):
    def run(*arguments):
        return subprocess.run([build_dir / "bin" / "gpubusy", *arguments], capture_output=True,
                              text=True, timeout=120)

    return run


def total(gpubusy, folder):
    report = json.loads(gpubusy("report", folder, "--by", "line", "--json").stdout)
    (process,) = report["processes"]
    return process["total"]


# The schema as https://github.com/google/pprof/blob/main/proto/profile.proto has it, the parts that a
# reader needs: name, number, type ("*": repeated).
SCHEMA = {
    "ValueType": [("type", 1, "int64"), ("unit", 2, "int64")],
    "Label": [("key", 1, "int64"), ("str", 2, "int64"), ("num", 3, "int64")],
    "Sample": [("location_id", 1, "*uint64"), ("value", 2, "*int64"), ("label", 3, "*Label")],
    "Mapping": [("id", 1, "uint64"), ("memory_start", 2, "uint64"), ("memory_limit", 3, "uint64"),
                ("file_offset", 4, "uint64"), ("filename", 5, "int64"), ("build_id", 6, "int64"),
                ("has_functions", 7, "bool"), ("has_filenames", 8, "bool"),
                ("has_line_numbers", 9, "bool"), ("has_inline_frames", 10, "bool")],
    "Line": [("function_id", 1, "uint64"), ("line", 2, "int64")],
    "Location": [("id", 1, "uint64"), ("mapping_id", 2, "uint64"), ("address", 3, "uint64"),
                 ("line", 4, "*Line"), ("is_folded", 5, "bool")],
    "Function": [("id", 1, "uint64"), ("name", 2, "int64"), ("system_name", 3, "int64"),
                 ("filename", 4, "int64"), ("start_line", 5, "int64")],
    "Profile": [("sample_type", 1, "*ValueType"), ("sample", 2, "*Sample"),
                ("mapping", 3, "*Mapping"), ("location", 4, "*Location"),
                ("function", 5, "*Function"), ("string_table", 6, "*string"),
                ("drop_frames", 7, "int64"), ("keep_frames", 8, "int64"),
                ("time_nanos", 9, "int64"), ("duration_nanos", 10, "int64"),
                ("period_type", 11, "ValueType"), ("period", 12, "int64"),
                ("comment", 13, "*int64"), ("default_sample_type", 14, "int64")],
}


def parsed(data):
    """By Google's protobuf library. Fails on what the schema does not know."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields

    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="p", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind in fields:
            f = message.field.add(name=field_name, number=number)
            f.label = field.LABEL_REPEATED if kind.startswith("*") else field.LABEL_OPTIONAL
            kind = kind.lstrip("*")
            if kind in SCHEMA:
                f.type, f.type_name = field.TYPE_MESSAGE, f".p.{kind}"
            else:
                f.type = getattr(field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = message_factory.GetMessageClass(pool.FindMessageTypeByName("p.Profile"))()
    profile.ParseFromString(data)
    for message in [profile, *profile.sample, *profile.location, *profile.function,
                    *profile.mapping, *profile.sample_type]:
        assert len(unknown_fields.UnknownFieldSet(message)) == 0
    return profile


@pytest.mark.parametrize("scenario", ["starved", "everything", "launches"])
def test_pprof(traces, gpubusy, tmp_path, scenario):
    folder = traces(scenario)[0].parent
    result = gpubusy("export", folder, "--format", "pprof", "-o", tmp_path)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.glob("*.pprof.pb.gz")
    assert result.stdout == f"{path}\n"
    profile = parsed(gzip.decompress(path.read_bytes()))
    text = profile.string_table
    assert text[0] == ""
    types = [text[t.type] for t in profile.sample_type]
    sums = [sum(s.value[i] for s in profile.sample) for i in range(len(types))]
    sums = dict(zip(types, sums))
    whole = total(gpubusy, folder)
    assert sums["launches"] == whole["launches"] > 0
    assert sums["calls"] == whole["calls"]
    for name, key in {"device_time": "device_ms", "host_time": "host_ms",
                      "gpu_idle": "idle_ms"}.items():
        assert sums[name] == pytest.approx(whole[key] * 1e6, abs=1)
    locations = {l.id: l for l in profile.location}
    functions = {f.id: f for f in profile.function}
    assert len(locations) == len(profile.location) and len(functions) == len(profile.function)
    assert 0 not in locations and 0 not in functions
    for sample in profile.sample:
        assert len(sample.value) == len(types) and sample.location_id
        for location in sample.location_id:
            for line in locations[location].line:
                assert text[functions[line.function_id].name]
    if scenario == "starved":
        assert "main" in {text[f.name] for f in profile.function}


def test_go_reads_the_profile(traces, gpubusy, tmp_path):
    go = shutil.which("go")
    if go is None:
        pytest.skip("go is not installed")
    folder = traces("starved")[0].parent
    gpubusy("export", folder, "--format", "pprof", "-o", tmp_path)
    (path,) = tmp_path.glob("*.pprof.pb.gz")
    top = subprocess.run([go, "tool", "pprof", "-top", "-sample_index=launches", path],
                         capture_output=True, text=True, timeout=120)
    assert top.returncode == 0, top.stderr
    assert re.search(r"\b320\b.*100%.*\bmain\b", top.stdout)


@pytest.mark.parametrize("scenario", ["starved", "everything", "launches"])
@pytest.mark.parametrize("weight", WEIGHTS)
def test_folded(traces, gpubusy, tmp_path, scenario, weight):
    folder = traces(scenario)[0].parent
    result = gpubusy("export", folder, "--format", "folded", "--weight", weight, "-o", tmp_path)
    assert result.returncode == 0, result.stderr
    (path,) = tmp_path.glob(f"*.{weight}.folded")
    whole, stacks = 0, set()
    for line in path.read_text(encoding="utf-8").splitlines():
        # What flamegraph.pl takes: all but the last word are frames, divided by ";".
        match = re.fullmatch(r"(.*)\s+(\d+)", line)
        assert match, line
        frames = match[1].split(";")
        assert all(frames) and match[1] not in stacks
        stacks.add(match[1])
        whole += int(match[2])
    wanted = total(gpubusy, folder)[WEIGHTS[weight]]
    assert whole == pytest.approx(wanted * (1e6 if weight != "launches" else 1), abs=1)


def test_a_second_export_takes_another_name(traces, gpubusy, tmp_path):
    folder = traces("starved")[0].parent
    for _ in range(2):
        assert gpubusy("export", folder, "--format", "folded", "-o", tmp_path).returncode == 0
    assert len(list(tmp_path.glob("*.folded"))) == 2
    missing = gpubusy("export", folder, "--format", "folded", "-o", tmp_path / "none")
    assert missing.returncode == 1 and "expected a directory" in missing.stderr
