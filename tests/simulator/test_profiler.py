# SPDX-License-Identifier: Apache-2.0
"""torch.profiler on the simulated device: its traces against what truly happened."""

import collections
import json
import pathlib
import statistics

import pytest

# Of libtorch's own clock conversion between the time stamp counter and the time of day.
TOLERANCE_NS = 1000

WORK = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}

PROFILED = """
import torch.nn as nn
from torch.profiler import profile, schedule, ProfilerActivity
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.LayerNorm(128), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(32, 64).pin_memory()
y = torch.randint(0, 10, (32,)).cuda()
big = torch.zeros(1 << 20, device="cuda")
def step():
    x = data.to("cuda", non_blocking=True)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    big.sum()  # in several blocks, whose counters are set to zero first
    return loss.item()
step()
count = 0
def ready(p):
    global count
    count += 1
    p.export_chrome_trace(f"trace{count}.json")
"""


class Trace:
    def __init__(self, path, log):
        self.data = json.loads(pathlib.Path(path).read_text())
        self.events = self.data["traceEvents"]
        self.base_ns = self.data["baseTimeNanoseconds"]
        self.log = log

    def category(self, *names):
        return [e for e in self.events if e.get("cat") in names]

    @property
    def work(self):
        return self.category(*WORK)

    @property
    def calls(self):
        return self.category("cuda_runtime", "cuda_driver")

    def true_ns(self, event):
        """When an event began and ended, on the truth log's clock."""
        offset = self.log.start_realtime_ns - self.log.start_ns
        start = self.base_ns + round(event["ts"] * 1000) - offset
        return start, start + round(event["dur"] * 1000)

    def flows(self, phase):
        return {e["id"] for e in self.category("ac2g") if e["ph"] == phase}


def check_work(trace):
    """Every operation of the window is in the trace, once, where and when it ran."""
    assert trace.work and trace.calls
    correlations = [e["args"]["correlation"] for e in trace.calls]
    first, last = min(correlations), max(correlations)
    expected = collections.defaultdict(list)
    for operation in trace.log.operations:
        if first <= operation.correlation <= last and operation.kind in WORK.values():
            expected[operation.correlation, operation.stream].append(operation)
    found = collections.defaultdict(list)
    for event in trace.work:
        found[event["args"]["correlation"], event["args"]["stream"]].append(event)
    assert found.keys() == expected.keys()
    errors = []
    for key, operations in expected.items():
        events = sorted(found[key], key=lambda e: e["ts"])
        operations.sort(key=lambda o: o.start_ns)
        assert len(events) == len(operations)
        for event, operation in zip(events, operations):
            assert WORK[event["cat"]] == operation.kind
            assert event["pid"] == operation.device
            if operation.kind == "kernel":
                assert tuple(event["args"]["grid"]) == operation.grid
                assert tuple(event["args"]["block"]) == operation.block
            else:
                assert event["args"]["bytes"] == operation.bytes
            start, end = trace.true_ns(event)
            errors += [start - operation.start_ns, end - operation.end_ns]
    assert max(abs(e) for e in errors) < TOLERANCE_NS, (min(errors), max(errors))
    return errors


def check_calls(trace):
    """Rows of the runtime are calls that were made, at these times."""
    calls = {c.correlation: c for c in trace.log.calls}
    late = []
    for event in trace.calls:
        call = calls[event["args"]["correlation"]]
        assert call.name in (event["name"], "__" + event["name"])
        start, end = trace.true_ns(event)
        assert call.start_ns - TOLERANCE_NS < start <= end, event
        assert start < call.end_ns + TOLERANCE_NS, event
        late.append(start - call.start_ns)
    # The thread may have been interrupted between the two clocks, but not often.
    assert statistics.median(late) < TOLERANCE_NS


def check_links(trace):
    launched = {e["args"]["correlation"] for e in trace.work}
    called = {e["args"]["correlation"] for e in trace.calls}
    assert launched <= called
    assert launched <= trace.flows("f")
    # Where this trace's launches are of a function that libtorch knows to be one.
    known = {e["args"]["correlation"] for e in trace.calls
             if not e["name"].startswith("__cudaLaunchKernel")}
    assert launched & known <= trace.flows("s")


def check(trace):
    check_work(trace)
    check_calls(trace)
    check_links(trace)


@pytest.mark.parametrize("version", [13, 13.5])
def test_two_windows_with_everything(torch_script, tmp_path, version):
    run = torch_script(PROFILED + """
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
             schedule=schedule(wait=1, warmup=1, active=3, repeat=2), on_trace_ready=ready,
             with_stack=True, record_shapes=True, profile_memory=True) as p:
    for _ in range(11):
        step()
        p.step()
print(count)
""", cupti_api=version)
    assert run.stdout.split() == ["2"]
    seen = set()
    for number in (1, 2):
        trace = Trace(tmp_path / f"trace{number}.json", run.log)
        check(trace)
        assert {e["cat"] for e in trace.work} == set(WORK)
        assert len([e for e in trace.events if e.get("name", "").startswith("ProfilerStep#")]) >= 3
        assert trace.category("python_function")
        assert any("memory" in e.get("name", "") for e in trace.category("cpu_instant_event"))
        correlations = {e["args"]["correlation"] for e in trace.work}
        assert not seen & correlations
        seen |= correlations
        copies = [e for e in trace.category("gpu_memcpy") if e["args"]["bytes"] == 32 * 64 * 4]
        assert len(copies) == 3
        assert {e["name"] for e in copies} == {"Memcpy HtoD (Pinned -> Device)"}
        # Every kernel belongs to an operator.
        assert all("External id" in e["args"] for e in trace.category("kernel"))


def test_every_kernel_is_linked_where_launches_have_their_old_name(torch_script, tmp_path):
    run = torch_script(PROFILED + """
with profile() as p:
    for _ in range(3):
        step()
ready(p)
""", cupti_old_launches=1)
    trace = Trace(tmp_path / "trace1.json", run.log)
    check(trace)
    launched = {e["args"]["correlation"] for e in trace.work}
    assert launched <= trace.flows("s")
    assert trace.category("overhead")[0]["name"] == "Activity Buffer Request"
    names = collections.Counter(e["name"] for e in trace.calls)
    assert names["cudaLaunchKernel"] > 10 and "__cudaLaunchKernel" not in names


def test_streams(torch_script, tmp_path):
    run = torch_script(PROFILED + """
a, b = torch.cuda.Stream(), torch.cuda.Stream()
with profile() as p:
    for stream in (a, b, a):
        with torch.cuda.stream(stream):
            step()
ready(p)
""")
    trace = Trace(tmp_path / "trace1.json", run.log)
    check(trace)
    streams = {o.stream for o in run.log.operations}
    assert {e["tid"] for e in trace.category("kernel")} <= streams
    assert len({e["tid"] for e in trace.category("kernel")}) == 2


def test_graph_replays_show_every_node(torch_script, tmp_path):
    run = torch_script(PROFILED + """
x = torch.randn(32, 64, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    z = (model(x) * 2).relu().sum()
graph.replay()
torch.cuda.synchronize()
with profile() as p:
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
ready(p)
""")
    trace = Trace(tmp_path / "trace1.json", run.log)
    check(trace)
    launches = [e for e in trace.calls if e["name"] == "cudaGraphLaunch"]
    assert len(launches) == 4
    in_graph = [e for e in trace.category("kernel") if e["args"]["graph node id"] != 0]
    by_launch = collections.Counter(e["args"]["correlation"] for e in in_graph)
    assert set(by_launch) == {e["args"]["correlation"] for e in launches}
    assert len(set(by_launch.values())) == 1 and min(by_launch.values()) > 3
    nodes = collections.Counter(e["args"]["graph node id"] for e in in_graph)
    assert set(nodes.values()) == {4}
    truly = {o.node for o in run.log.operations if o.graph and o.correlation in by_launch}
    assert set(nodes) == truly


def test_copies_between_devices(torch_script, tmp_path):
    run = torch_script(PROFILED + """
x = torch.randn(1000, device="cuda:0")
with profile() as p:
    x.to("cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
ready(p)
""", devices=2)
    trace = Trace(tmp_path / "trace1.json", run.log)
    check(trace)
    assert [e["name"] for e in trace.category("gpu_memcpy")] == ["Memcpy PtoP (Device -> Device)"]


def test_synchronisation_events(torch_script, tmp_path):
    run = torch_script(PROFILED + """
from torch._C._profiler import _ExperimentalConfig
stream, event = torch.cuda.Stream(), torch.cuda.Event()
with profile(experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)) as p:
    step()
    event.record()
    stream.wait_event(event)
    with torch.cuda.stream(stream):
        big.relu_()  # a wait with nothing behind it is left out
    event.synchronize()
    stream.synchronize()
    torch.cuda.synchronize()
ready(p)
""")
    trace = Trace(tmp_path / "trace1.json", run.log)
    check(trace)
    kinds = {e["args"]["cuda_sync_kind"] for e in trace.category("cuda_sync")}
    assert kinds >= {"Stream Wait Event", "Event Sync", "Stream Sync", "Context Sync"}
    for name in ("Stream Wait Event", "Event Sync"):
        waits = [e for e in trace.category("cuda_sync") if e["name"] == name]
        assert waits[0]["args"]["wait_on_stream"] == 7


# ---- what goes wrong in the field

@pytest.mark.parametrize("fault", ["cuptiActivityEnable@1=35", "cuptiSubscribe@1=35"])
def test_forbidden(torch_script, tmp_path, fault):
    run = torch_script(PROFILED + """
with profile() as p:
    step()
ready(p)
""", fail=fault)
    trace = Trace(tmp_path / "trace1.json", run.log)
    # It would get records without a subscription, but does not ask for them.
    assert not trace.work and not trace.calls
    assert trace.category("cpu_op")


SUBSCRIBER = """
import ctypes
cupti = ctypes.CDLL("libcupti.so.13")
class Params(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("old", ctypes.c_char_p),
                ("old_size", ctypes.c_size_t), ("allow", ctypes.c_uint8 * 8)]
callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)(
    lambda *_: None)
def subscribe():
    handle = ctypes.c_void_p()
    params = Params(ctypes.sizeof(Params), b"other", None, 0, (1,))
    return cupti.cuptiSubscribe_v2(ctypes.byref(handle), callback, None, ctypes.byref(params))
"""


def test_a_newer_subscriber_keeps_it_out(torch_script, tmp_path):
    """Kineto has the old functions, which the new ones exclude: it sees no device for ever."""
    run = torch_script(PROFILED + SUBSCRIBER + """
print(subscribe())
with profile() as p:
    step()
ready(p)
print(subscribe())
""", cupti_api=13.5)
    assert run.stdout.split() == ["0", "0"]
    trace = Trace(tmp_path / "trace1.json", run.log)
    assert not trace.work and not trace.calls
    assert trace.category("cpu_op")


def test_it_keeps_newer_subscribers_out(torch_script, tmp_path):
    run = torch_script(PROFILED + SUBSCRIBER + """
for window in range(2):
    with profile() as p:
        step()
    ready(p)
    print(subscribe())
""", cupti_api=13.5)
    assert run.stdout.split() == ["39", "39"]
    for number in (1, 2):
        check(Trace(tmp_path / f"trace{number}.json", run.log))


def test_a_slow_device_clock_loses_kernels_of_later_windows(torch_script, tmp_path):
    """As in the field: what began before its window by a wrong clock is dropped."""
    run = torch_script(PROFILED + """
import time
for window in range(2):
    with profile() as p:
        step()
    ready(p)
    time.sleep(0.5)
""", cupti_clock_drift_ppm=-20000, memory_gib=1)
    traces = [Trace(tmp_path / f"trace{number}.json", run.log) for number in (1, 2)]
    launched = [len([e for e in t.calls if "LaunchKernel" in e["name"]]) for t in traces]
    kernels = [len(t.category("kernel")) for t in traces]
    assert launched[0] == launched[1]
    assert kernels[1] < launched[1]
    assert kernels[1] < kernels[0]
