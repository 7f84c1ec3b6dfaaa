#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads the simulator's truth log; docs/truth-log.md says what is in it.

    python3 truth.py FILE...        prints the records as JSON lines

    import truth
    log = truth.load("DIR/1234.simtruth")       # or load_directory("DIR"): one for each process
    log.calls, log.operations, log.stalls, log.unimplemented, log.streams
    truth.busy_intervals(log.operations)        # union of [start, end), sorted
"""

import collections
import dataclasses
import json
import pathlib
import struct
import sys

MAGIC = b"GBSIMTR1"
RECORD_SIZE = 128
STRING_PART = 112
LAYERS = ("runtime", "driver", "library")
OPERATIONS = ("empty", "kernel", "memcpy", "memset", "host_function")
MEMORY = ("none", "pageable", "pinned", "device", "managed")
DEFAULT_STREAM = 7

_STRING = struct.Struct("<IIII")
_CALL = struct.Struct("<IIIIQQiI")
_OPERATION = struct.Struct("<IBBBBiIQQQII3I3IIIQQii")
_STALL = struct.Struct("<IIIIQQ")
_UNIMPLEMENTED = struct.Struct("<IIIIQ")
_STREAM = struct.Struct("<IiIIiIQQ")
_HEADER = struct.Struct("<8sIIIIQQI84s")


class TruthError(Exception):
    """The file is no truth log, or of a version that this reader does not know."""


@dataclasses.dataclass
class Call:
    """An API call that the program made; what it called in turn is part of it."""

    layer: str
    name: str
    thread: int
    start_ns: int
    end_ns: int
    result: int
    correlation: int


@dataclasses.dataclass
class Operation:
    """What a device did. Times may lie after the end of a process that was killed."""

    kind: str
    name: str
    device: int
    stream: int
    start_ns: int
    end_ns: int
    bytes: int
    correlation: int
    grid: tuple
    block: tuple
    shared_bytes: int
    value: int
    source: str
    destination: str
    source_device: int
    destination_device: int
    graph: int
    node: int

    @property
    def copy_kind(self):
        """HtoD, DtoH, DtoD, HtoH, PtoP or None."""
        if self.kind != "memcpy":
            return None
        sides = ["D" if m in ("device", "managed") else "H" for m in (self.source, self.destination)]
        if sides == ["D", "D"] and self.source_device != self.destination_device:
            return "PtoP"
        return "to".join(sides)


@dataclasses.dataclass
class Stall:
    """Time that a call took for a known reason."""

    reason: str
    thread: int
    correlation: int
    start_ns: int
    end_ns: int


@dataclasses.dataclass
class Unimplemented:
    library: str
    name: str
    thread: int
    time_ns: int


@dataclasses.dataclass
class Stream:
    device: int
    stream: int
    flags: int
    priority: int
    handle: int
    time_ns: int


@dataclasses.dataclass
class Log:
    path: str
    pid: int
    parent_pid: int
    start_ns: int
    start_realtime_ns: int
    devices: int
    command: str
    calls: list = dataclasses.field(default_factory=list)
    operations: list = dataclasses.field(default_factory=list)
    stalls: list = dataclasses.field(default_factory=list)
    unimplemented: list = dataclasses.field(default_factory=list)
    streams: list = dataclasses.field(default_factory=list)

    def records(self):
        """All of them, as (kind, record)."""
        for kind in ("calls", "operations", "stalls", "unimplemented", "streams"):
            for record in getattr(self, kind):
                yield kind, record


def _read_strings(data, offsets):
    parts, lengths = collections.defaultdict(dict), {}
    for offset in offsets:
        _, number, length, part = _STRING.unpack_from(data, offset)
        start = offset + _STRING.size
        parts[number][part] = data[start:start + STRING_PART]
        lengths[number] = length
    strings = {0: ""}
    for number, pieces in parts.items():
        # A piece may be missing where the process was killed while it wrote the string.
        count = max(1, -(-lengths[number] // STRING_PART))
        text = b"".join(pieces.get(i, b"?" * STRING_PART) for i in range(count))
        strings[number] = text[:lengths[number]].decode("utf-8", "replace")
    return strings


def parse(data, path=""):
    """A Log from the bytes of a file. What was not written to its end is left out."""
    if len(data) < RECORD_SIZE or data[:8] != MAGIC:
        raise TruthError(f"{path}: not a truth log")
    header = _HEADER.unpack_from(data, 0)
    _, version, record_size, pid, parent_pid, start, realtime, devices, command = header
    if version != 1 or record_size != RECORD_SIZE:
        raise TruthError(f"{path}: version {version} is not known")
    log = Log(str(path), pid, parent_pid, start, realtime, devices,
              command.split(b"\0")[0].decode("utf-8", "replace"))
    by_kind = collections.defaultdict(list)
    for offset in range(RECORD_SIZE, len(data) - RECORD_SIZE + 1, RECORD_SIZE):
        kind = int.from_bytes(data[offset:offset + 4], "little")
        if kind:
            by_kind[kind].append(offset)
    strings = _read_strings(data, by_kind[1])

    def name(number):
        return strings.get(number, f"?{number}")

    for offset in by_kind[2]:
        _, layer, text, thread, begin, end, result, correlation = _CALL.unpack_from(data, offset)
        log.calls.append(Call(LAYERS[layer], name(text), thread, begin, end, result, correlation))
    for offset in by_kind[3]:
        (_, kind, source, destination, _, device, stream, begin, end, size, text, correlation,
         gx, gy, gz, bx, by, bz, shared, value, graph, node, source_device,
         destination_device) = _OPERATION.unpack_from(data, offset)
        log.operations.append(Operation(
            OPERATIONS[kind], name(text), device, stream, begin, end, size, correlation,
            (gx, gy, gz), (bx, by, bz), shared, value, MEMORY[source], MEMORY[destination],
            source_device, destination_device, graph, node))
    for offset in by_kind[4]:
        _, reason, thread, correlation, begin, end = _STALL.unpack_from(data, offset)
        log.stalls.append(Stall(name(reason), thread, correlation, begin, end))
    for offset in by_kind[5]:
        _, library, text, thread, time = _UNIMPLEMENTED.unpack_from(data, offset)
        log.unimplemented.append(Unimplemented(name(library), name(text), thread, time))
    for offset in by_kind[6]:
        _, device, stream, flags, priority, _, handle, time = _STREAM.unpack_from(data, offset)
        log.streams.append(Stream(device, stream, flags, priority, handle, time))
    for records in (log.calls, log.operations, log.stalls):
        records.sort(key=lambda r: (r.start_ns, r.end_ns))
    return log


def load(path):
    return parse(pathlib.Path(path).read_bytes(), path)


def load_directory(directory):
    """The logs of all processes that wrote one there, by process id and age."""
    logs = [load(p) for p in pathlib.Path(directory).glob("*.simtruth*")]
    return sorted(logs, key=lambda log: (log.start_ns, log.pid))


def merge(intervals):
    """The union of (start, end) pairs, sorted."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > start:
            merged.append((start, end))
    return merged


def busy_intervals(operations, device=None, kinds=("kernel", "memcpy", "memset"), window=None):
    """When a device (all: None) did any of `kinds`, cut to `window` (start_ns, end_ns)."""
    chosen = [(o.start_ns, o.end_ns) for o in operations
              if o.kind in kinds and (device is None or o.device == device)]
    if window is not None:
        chosen = [(max(s, window[0]), min(e, window[1])) for s, e in chosen
                  if s < window[1] and e > window[0]]
    return merge(chosen)


def total_ns(intervals):
    return sum(end - start for start, end in intervals)


def counts(log):
    """How many operations of each kind, copies by direction."""
    return collections.Counter(o.copy_kind or o.kind for o in log.operations)


def main(arguments):
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    for path in arguments:
        log = load(path)
        for kind, record in log.records():
            print(json.dumps({"record": kind.rstrip("s"), **dataclasses.asdict(record)}))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        sys.exit(0)
    except (TruthError, OSError) as error:
        sys.exit(f"truth.py: {error}")
