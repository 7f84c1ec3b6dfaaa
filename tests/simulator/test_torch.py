# SPDX-License-Identifier: Apache-2.0
"""The unmodified CUDA wheel of torch on the simulated device."""

import collections
import json

import pytest
import truth

TRAIN = """
import torch.nn as nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.LayerNorm(512), nn.Dropout(0.1),
                      nn.Linear(512, 10)).cuda()
x, y = torch.randn(64, 256).cuda(), torch.randint(0, 10, (64,)).cuda()
def train(optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()
"""


def streams_of(log):
    streams = collections.defaultdict(list)
    for operation in log.operations:
        if operation.graph == 0:  # the branches of a graph run side by side
            streams[operation.device, operation.stream].append(operation)
    return streams


def check_order(log):
    for operations in streams_of(log).values():
        assert all(a.end_ns <= b.start_ns for a, b in zip(operations, operations[1:]))


def test_properties(torch_script):
    run = torch_script("""
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
p = torch.cuda.get_device_properties(1)
print(p.name, p.major, p.total_memory >> 20, p.multi_processor_count)
free, total = torch.cuda.mem_get_info()
print(total >> 20, free < total, torch.backends.cudnn.version(), torch.version.cuda)
""", devices=2, device_name="Toy GPU", memory_gib=8, sm_count=20)
    assert run.stdout.splitlines()[0] == "Toy GPU 9 8192 20"
    assert run.stdout.splitlines()[1].startswith("8192 True 92000 13")
    assert run.stderr == ""


def test_data_round_trips(torch_script):
    torch_script("""
for n in (1, 3, 100, 100_000, 3_000_000):
    x = torch.randn(n)
    assert torch.equal(x.cuda().cpu(), x) and torch.equal(x.cuda().clone().cpu(), x)
    p = x.pin_memory()
    assert p.is_pinned() and torch.equal(p.cuda(non_blocking=True).cpu(), x)
assert x.cuda()[5].item() == x[5].item()
assert torch.zeros(5, device="cuda").tolist() == [0] * 5
""")


@pytest.mark.parametrize("optimizer, name", [
    ("torch.optim.SGD(model.parameters(), lr=.1, momentum=.9)", "multi_tensor_apply"),
    ("torch.optim.Adam(model.parameters(), foreach=True)", "multi_tensor_apply"),
    ("torch.optim.AdamW(model.parameters(), fused=True)", "FusedAdamMathFunctor"),
    ("torch.optim.SGD(model.parameters(), lr=.1, foreach=False)", "elementwise_kernel"),
])
def test_training(torch_script, optimizer, name):
    run = torch_script(TRAIN + f"""
optimizer = {optimizer}
train(optimizer, 3); torch.cuda.synchronize()
start = time.monotonic_ns(); print(train(optimizer, 20)); torch.cuda.synchronize()
print(start, time.monotonic_ns())
""")
    loss, window = run.stdout.splitlines()
    assert float(loss) == 0
    log = run.log
    start, end = map(int, window.split())
    assert start < end
    assert any(name in o.name for o in log.operations)
    # Two products forward, four backward less the input's gradient, in each step.
    products = [o for o in log.operations if "gemm" in o.name]
    assert len(products) % 23 == 0 and len(products) >= 23 * 4
    launches = [c for c in log.calls if "aunchKernel" in c.name]
    assert len(launches) == sum(o.kind == "kernel" for o in log.operations)
    assert {c.layer for c in launches} == {"runtime", "library"}
    check_order(log)
    assert log.unimplemented == []
    # The loss was read when all before it was done.
    busy = truth.busy_intervals(log.operations, window=(start, end))
    assert 0 < truth.total_ns(busy) <= end - start


def test_mixed_precision(torch_script):
    run = torch_script(TRAIN + """
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
with torch.autocast("cuda", dtype=torch.bfloat16):
    nn.functional.cross_entropy(model(x), y).backward()
print(loss.item())
""")
    names = {o.name for o in run.log.operations}
    assert any("gemm_f16f16" in n for n in names) and any("gemm_bf16bf16" in n for n in names)
    assert any("amp" in n.lower() for n in names)


def test_data_loader(torch_script):
    run = torch_script("""
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self): return 256
    def __getitem__(self, i): return torch.full((3, 32, 32), float(i)), i % 10
for persistent in (False, True):
    loader = DataLoader(Data(), batch_size=32, num_workers=2, pin_memory=True,
                        persistent_workers=persistent)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=.1)
    for epoch in range(2):
        for x, y in loader:
            assert x.is_pinned()
            x, y = x.to("cuda", non_blocking=True), y.to("cuda", non_blocking=True)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step(); optimizer.zero_grad()
        assert x.cpu()[:, 0, 0, 0].tolist() == [float(i) for i in range(224, 256)]
print("done")
""")
    assert run.stdout == "done\n"
    copies = [o for o in run.log.operations if o.copy_kind == "HtoD" and o.bytes == 32 * 3072 * 4]
    assert len(copies) == 2 * 2 * 8
    assert {o.source for o in copies} == {"pinned"}
    check_order(run.log)
    assert len(run.logs) == 1  # the workers never touch the device


def test_spawned_workers_and_processes(torch_script, tmp_path):
    (tmp_path / "spawned.py").write_text("""
import torch, torch.multiprocessing as mp
def work(rank):
    torch.cuda.set_device(rank)
    (torch.ones(1000, device="cuda") * 2).sum().item()
if __name__ == "__main__":
    torch.ones(1).cuda()
    mp.spawn(work, nprocs=2)
    print("done")
""")
    run = torch_script("import runpy; runpy.run_path('spawned.py', run_name='__main__')", devices=2,
                       prefix="")
    assert run.stdout == "done\n"
    used = [log for log in run.logs if log.operations]
    assert len(used) == 3
    assert {o.device for log in used for o in log.operations} == {0, 1}


def test_fork_after_use_is_an_error(torch_script):
    run = torch_script("""
import torch.multiprocessing as mp
def work():
    try: torch.ones(1, device="cuda")
    except RuntimeError as e: print("refused" if "fork" in str(e) else e, flush=True)
torch.ones(1).cuda()
p = mp.get_context("fork").Process(target=work); p.start(); p.join(30)
print(p.exitcode)
""")
    assert run.stdout.split() == ["refused", "0"]


def test_pinned_copies_overlap_the_host(torch_script):
    run = torch_script("""
import json
host = torch.ones(64 << 20, dtype=torch.uint8)
pinned = host.pin_memory()
device = torch.empty_like(host, device="cuda"); device.zero_(); torch.cuda.synchronize()
def copy(source):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(); start = time.perf_counter()
    begin.record(); device.copy_(source, non_blocking=True); call = time.perf_counter() - start
    end.record(); torch.cuda.synchronize(); total = time.perf_counter() - start
    assert bool((device.cpu() == 1).all())
    return call * 1e3, begin.elapsed_time(end), total * 1e3
print(json.dumps([min(copy(s) for _ in range(4)) for s in (pinned, host)]))
""")
    (call, event, total), (slow_call, slow_event, slow_total) = json.loads(run.stdout)
    # The call returns before the copy is over, however slow this host is at making it.
    assert call < event and event >= 64 * 1.048576 / 50
    assert event <= total and slow_event <= slow_total
    assert slow_call >= 64 * 1.048576 / 8
    kinds = {o.source for o in run.log.operations if o.bytes == 64 << 20 and o.copy_kind == "HtoD"}
    assert kinds == {"pinned", "pageable"}


def test_events_measure_what_is_logged(torch_script):
    run = torch_script("""
x = torch.ones(1000, device="cuda"); x + x; torch.cuda.synchronize()
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
for _ in range(100): x + x
end.record(); torch.cuda.synchronize()
print(begin.elapsed_time(end))
""", kernel_us=500)
    kernels = [o for o in run.log.operations if o.kind == "kernel"][-100:]
    measured = float(run.stdout) * 1e6
    logged = kernels[-1].end_ns - kernels[0].start_ns
    assert logged == pytest.approx(100 * 500_000, rel=0.01)
    # The first event is earlier than the first kernel by the time between the two calls.
    assert logged <= measured + 100
    assert measured - logged < 20e6


def test_resnet(torch_script):
    pytest.importorskip("torchvision")
    run = torch_script("""
import torchvision
model = torchvision.models.resnet18().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=.1, momentum=.9)
x, y = torch.randn(8, 3, 64, 64).cuda(), torch.zeros(8, dtype=torch.long).cuda()
for _ in range(3):
    optimizer.zero_grad(); torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
model.eval()
with torch.no_grad(): print(model(x).shape)
""")
    names = collections.Counter(
        kind for o in run.log.operations
        for kind in ("fprop", "dgrad", "wgrad", "bn_fw_tr", "bn_bw", "bn_fw_inf") if kind in o.name)
    # 20 convolutions and as many normalisations; the first has no input to give a gradient to.
    assert names == {"fprop": 80, "dgrad": 57, "wgrad": 60, "bn_fw_tr": 60, "bn_bw": 60,
                     "bn_fw_inf": 20}
    assert run.log.unimplemented == []


@pytest.mark.parametrize("backend", ["MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION",
                                     "CUDNN_ATTENTION"])
def test_attention(torch_script, backend):
    run = torch_script(f"""
from torch.nn.attention import SDPBackend, sdpa_kernel
q, k, v = (torch.randn(2, 4, 128, 64).bfloat16().cuda().requires_grad_() for _ in range(3))
with sdpa_kernel(SDPBackend.{backend}):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
torch.cuda.synchronize(); print(q.grad.shape)
""")
    assert "[2, 4, 128, 64]" in run.stdout


def test_transformer(torch_script):
    run = torch_script("""
import torch.nn as nn
layer = nn.TransformerEncoderLayer(256, 8, 512, batch_first=True)
model = nn.TransformerEncoder(layer, 2).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    optimizer.zero_grad(); model(torch.randn(4, 64, 256, device="cuda")).sum().backward()
    optimizer.step()
print(torch.cuda.max_memory_allocated() > 0)
""")
    assert run.stdout == "True\n"


def test_streams_overlap(torch_script):
    run = torch_script("""
a, b = torch.cuda.Stream(), torch.cuda.Stream()
x, y = torch.ones(100, device="cuda"), torch.ones(100, device="cuda")
torch.cuda.synchronize()
for _ in range(5):
    with torch.cuda.stream(a): x = x + 1
    with torch.cuda.stream(b): y = y + 1
b.wait_stream(a)
with torch.cuda.stream(b): y = y * 2
torch.cuda.synchronize()
""", kernel_us=20000)
    first, second = [s for s in streams_of(run.log).values() if len(s) in (5, 6)]
    assert first[4].start_ns < second[4].end_ns and second[4].start_ns < first[4].end_ns
    assert max(first, second, key=len)[-1].start_ns >= min(first, second, key=len)[-1].end_ns
    check_order(run.log)


def test_cuda_graphs(torch_script):
    run = torch_script(TRAIN + """
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
side = torch.cuda.Stream(); side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side): train(optimizer, 3)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph(); optimizer.zero_grad(set_to_none=True)
other = torch.cuda.Stream()
with torch.cuda.graph(graph):
    loss = nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other): x * 2
    torch.cuda.current_stream().wait_stream(other)
torch.cuda.synchronize(); print(time.monotonic_ns())
for _ in range(10): graph.replay()
torch.cuda.synchronize()
f = torch.cuda.make_graphed_callables(nn.Linear(256, 10).cuda(), (x,)); f(x).sum().backward()
try:
    with torch.cuda.graph(torch.cuda.CUDAGraph()): loss.item()
except Exception as e: print("captur" in str(e))
print(loss.item())
""")
    captured, refused, loss = run.stdout.splitlines()
    assert refused == "True" and float(loss) == 0
    log = run.log
    replays = [c for c in log.calls if c.name == "cudaGraphLaunch"]
    assert len(replays) >= 10
    nodes = collections.defaultdict(list)
    for operation in log.operations:
        if operation.graph:
            nodes[operation.correlation].append(operation)
    sizes = {len(nodes[c.correlation]) for c in replays[:10]}
    assert len(sizes) == 1 and sizes.pop() > 10
    assert all(o.start_ns > int(captured) for o in log.operations if o.graph)
    assert len({o.node for o in nodes[replays[0].correlation]}) == len(
        nodes[replays[0].correlation])


def test_two_devices(torch_script):
    run = torch_script("""
a = torch.arange(100_000.).cuda(0); b = a.to("cuda:1"); c = b.to("cuda:0", non_blocking=True)
assert torch.equal(c.cpu(), torch.arange(100_000.))
with torch.cuda.device(1): d = torch.ones(10, device="cuda") + 1
d2 = torch.ones(10, device="cuda:0") + 1
torch.cuda.synchronize(0); torch.cuda.synchronize(1); print(d.device, d2.device)
""", devices=2)
    assert run.stdout == "cuda:1 cuda:0\n"
    assert truth.counts(run.log)["PtoP"] == 2
    assert {o.device for o in run.log.operations if o.kind == "kernel"} == {0, 1}


def test_out_of_memory_is_torchs_own_error(torch_script):
    run = torch_script("""
try: torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as e: print("CUDA out of memory" in str(e))
x = torch.ones(10, device="cuda"); torch.cuda.synchronize(); print(x.shape[0])
""", memory_gib=2)
    assert run.stdout.split() == ["True", "10"]


def test_failures_reach_the_program(torch_script):
    run = torch_script("""
x = torch.ones(10, device="cuda")
try:
    for _ in range(200): x = x + 1
except RuntimeError as e: print("unspecified launch failure" in str(e))
""", fail="cuLaunchKernel@100=719")
    assert run.stdout == "True\n"


def test_memory_allocators(torch_script):
    source = TRAIN + "print(train(torch.optim.SGD(model.parameters(), lr=.1), 3))"
    run = torch_script(source, env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
    assert run.stdout == "0.0\n"
    assert any(c.name == "cudaMallocAsync" for c in run.log.calls)


def test_expandable_segments(torch_script):
    run = torch_script("""
x = torch.randn(3_000_000); assert torch.equal(x.cuda().cpu(), x)
big = [torch.empty(50 << 20, device="cuda") for _ in range(5)]
free = torch.cuda.mem_get_info()[0]
del big; torch.cuda.empty_cache(); print((torch.cuda.mem_get_info()[0] - free) >> 20)
try: torch.empty(20 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError: print("full")
""", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, memory_gib=16)
    assert run.stdout.split() == ["1000", "full"]
    assert any(c.name == "cuMemCreate" for c in run.log.calls)


def test_recurrent_networks(torch_script):
    run = torch_script("""
x = torch.randn(4, 10, 32, device="cuda", requires_grad=True)
for kind in (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN):
    for options in ({}, {"num_layers": 2, "bidirectional": True, "dropout": .1}, {"bias": False}):
        model = kind(32, 64, **options).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=.1)
        for _ in range(2): model(x)[0].sum().backward(); optimizer.step()
torch.nn.LSTM(32, 64, proj_size=16).cuda()(x)[0].sum().backward(); torch.cuda.synchronize()
""")
    passes = [o for o in run.log.operations if o.name.startswith("void RNN_")]
    assert len(passes) == (9 * 2 + 1) * 3
    assert run.log.unimplemented == []


@pytest.mark.parametrize("visible, expected", [
    ("2,0", "2 3,1"), ("1", "1 2"), ("GPU-67707562-7573-792d-7369-6d0000000002", "1 3"),
    ("0,7,1", "1 1"), ("", "0 "), ("0,0", "0 "),
])
def test_visible_devices(torch_script, visible, expected):
    run = torch_script("""
import ctypes
count = ctypes.c_int(); ctypes.CDLL(None).cudaGetDeviceCount(ctypes.byref(count))
assert torch.cuda.device_count() == count.value
buses = [torch.cuda.get_device_properties(i).pci_bus_id for i in range(count.value)]
print(count.value, ",".join(map(str, buses)))
""", devices=3, env={"CUDA_VISIBLE_DEVICES": visible})
    assert run.stdout.rstrip("\n") == expected


def test_triton_and_compile(torch_script, tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "compiled.py").write_text("""
import torch
@torch.compile
def f(x, y): return torch.nn.functional.gelu(x * 2 + y).sum(-1)
x = torch.randn(128, 512).cuda().requires_grad_(); y = torch.randn(128, 512).cuda()
f(x, y).sum().backward(); torch.cuda.synchronize(); print("done")
""")
    run = torch_script("import runpy; runpy.run_path('compiled.py', run_name='__main__')",
                       timeout=400, env={"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
                                         "TRITON_CACHE_DIR": str(tmp_path / "triton")})
    assert run.stdout == "done\n"
    log = next(log for log in run.logs if log.operations)
    triton = [o for o in log.operations if o.name.startswith("triton_")]
    assert len(triton) >= 2
    assert any(c.name.startswith("cuLaunchKernel") and c.layer == "driver" for c in log.calls)
