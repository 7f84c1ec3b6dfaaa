# SPDX-License-Identifier: Apache-2.0
"""Trainings with one thing wrong, as users reported them, and their controls: torch_diagnoses.py DIRECTORY.
Each runs in a forked child of its own (torch is imported once, and no device is touched before) with a
simulated device of its own. DIRECTORY gets a file NAME.json of each: its process id, when its steps ended,
and when what is wrong ran (CLOCK_MONOTONIC, ns). Lines that a verdict should name are marked."""

import contextlib
import ctypes
import fcntl
import json
import os
import sys
import tempfile
import threading
import time
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
WIDTH = 1024
# A product of a batch with a layer takes 1 ms then.
SLOW = {"gemm_tflops": 1}


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(200))


class Training:
    """Two layers: 5 products on the device in a step."""

    def __init__(self, layers=2):
        torch.set_num_threads(1)
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers))).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batch = torch.ones(256, WIDTH, device="cuda")
        self.edges, self.marks = [], []

    @contextlib.contextmanager
    def mark(self, what):
        begin = time.monotonic_ns()
        yield
        self.marks.append((what, begin, time.monotonic_ns()))

    def step(self, batch=None):
        self.loss = self.model(self.batch if batch is None else batch).square().mean()
        self.optimizer.zero_grad()
        self.loss.backward()
        self.optimizer.step()
        self.edges.append(time.monotonic_ns())

    def end(self):
        self.loss.item()
        with open(f"{sys.argv[1]}/{sys.argv[2]}.json", "w") as file:
            json.dump({"pid": os.getpid(), "edges": self.edges, "marks": self.marks}, file)


# ---- D01, D07: the workers of a loader


class Samples(Dataset):
    def __init__(self, length, fetch):
        self.length, self.fetch = length, fetch

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.fetch(index)
        return torch.full((WIDTH,), float(index))


def load(loader, training):
    for x in loader:
        training.step(x.cuda().expand(256, WIDTH))


def workers_compute():
    training = Training()
    load(DataLoader(Samples(100, lambda _: burn(0.03)), num_workers=2), training)
    training.end()


def workers_cheap():
    training = Training(layers=6)
    load(DataLoader(Samples(60, lambda _: None), num_workers=8), training)
    training.end()


def slow_storage():
    """The first epoch comes through a pipe at 100 KiB/s (4 KiB each 40 ms), the second without waiting."""
    training = Training()
    there, here = os.pipe()
    fcntl.fcntl(here, 1031, 4096)  # F_SETPIPE_SZ: nothing piles up
    if os.fork() == 0:
        os.close(there)
        try:
            while True:
                time.sleep(0.04)
                os.write(here, bytes(4096))
        finally:
            os._exit(0)
    os.close(here)

    class Files(Samples):
        slow = True

        def read(self, _):
            if self.slow:
                os.read(there, 4096)  # storage

    for slow in (True, False):
        data = Files(30, None)
        data.fetch, data.slow = data.read, slow
        load(DataLoader(data, num_workers=1), training)
    training.end()


# ---- D03: who waits for the device is not who keeps it


def waits_in_item():
    training = Training(layers=16)
    for _ in range(15):
        training.step()
        training.loss.item()  # item
    training.end()


def waits_in_copy():
    training = Training(layers=16)
    labels = torch.ones(256, 256)  # 256 KiB of pageable memory
    for _ in range(15):
        training.step()
        labels.cuda()  # copy
    training.end()


def item_all_the_time():
    training = Training()
    for _ in range(13):
        with torch.no_grad():
            for _ in range(20):
                y = training.model(training.batch).mean()
                y.item()  # synchronises
        training.step()
    training.end()


# ---- D04: who keeps the interpreter's lock


def gil(library):
    """A thread calls 50 ms of native code every 200 ms; PyDLL keeps the lock meanwhile, CDLL does not."""
    training = Training()
    stop = threading.Event()

    def call():
        while not stop.wait(0.15):
            library.usleep(50_000)

    thread = threading.Thread(target=call)
    thread.start()
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        training.step()
        training.loss.item()
    stop.set()
    thread.join()
    training.end()


def gil_kept():
    gil(ctypes.PyDLL(None))


def gil_released():
    gil(ctypes.CDLL(None))


# ---- D05: an allocator whose memory is full


def memory(lengths):
    training = Training()
    for mib in lengths:
        training.step()
        torch.empty(mib << 20, dtype=torch.uint8, device="cuda")  # allocates
    training.end()


def memory_full():
    memory([350 + 2 * i for i in range(24)])


def memory_settles():
    memory([40 * min(i, 3) + 40 for i in range(24)])


# ---- D06: kernels that are shorter than their launch


def small_kernels():
    training = Training()
    x = torch.ones(64, device="cuda")
    for _ in range(16):
        for _ in range(1200):
            x.mul_(1.5)  # launches
        training.step()
    training.end()


def small_kernels_in_a_graph():
    training = Training()
    x = torch.ones(64, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(1172):
            x.mul_(1.5)
    for _ in range(16):
        graph.replay()
        training.step()
    training.end()


# ---- D10: memory that a copy can or cannot take by itself


def copies():
    training = Training(layers=8)
    size = 64 << 20
    there = torch.empty(size, dtype=torch.uint8, device="cuda")
    pageable = torch.zeros(size, dtype=torch.uint8)
    pinned = torch.zeros(size, dtype=torch.uint8).pin_memory()
    registered = torch.zeros(size, dtype=torch.uint8)
    assert int(torch.cuda.cudart().cudaHostRegister(registered.data_ptr(), size, 0)) == 0
    for _ in range(10):
        there.copy_(pinned, non_blocking=True)  # pinned
        there.copy_(registered, non_blocking=True)  # registered
        there.copy_(pageable, non_blocking=True)  # pageable
        training.step()
    training.end()
    torch.cuda.cudart().cudaHostUnregister(registered.data_ptr())


# ---- D11: what comes every so many steps


def validate(training):
    with torch.no_grad():
        for _ in range(5):
            y = training.model(training.batch).mean()
            burn(0.02)
            y.item()  # validates


def periodic():
    training = Training()
    with tempfile.TemporaryDirectory() as directory:
        for i in range(1, 166):
            training.step()
            if i % 20 == 0:
                with training.mark("saves"):
                    state = {n: t.cpu() for n, t in training.model.state_dict().items()}
                    torch.save([state, bytes(20 << 20)], directory + "/saved.pt")  # saves
            if i % 50 == 0:
                with training.mark("validates"):
                    validate(training)
    training.end()


# name: the simulated device
PROGRAMS = {
    "workers_compute": SLOW, "workers_cheap": SLOW, "slow_storage": SLOW,
    "waits_in_item": SLOW, "waits_in_copy": SLOW,
    "item_all_the_time": {"gemm_tflops": 1, "call_us": 40},
    "gil_kept": SLOW, "gil_released": SLOW,
    "memory_full": {"gemm_tflops": 1, "malloc_us": 1000, "free_us": 5000, "memory_gib": 0.6},
    "memory_settles": {"gemm_tflops": 1, "malloc_us": 1000, "free_us": 5000, "memory_gib": 0.6},
    "small_kernels": {"kernel_us": 6, "call_us": 40},
    "small_kernels_in_a_graph": {"kernel_us": 6, "call_us": 40},
    "copies": SLOW, "periodic": SLOW,
}


def main():
    # What this imports takes longer than a whole program here.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for name, device in PROGRAMS.items():
        pid = os.fork()
        if pid == 0:
            for parameter, value in device.items():
                os.environ["GPUBUSY_SIM_" + parameter.upper()] = str(value)
            sys.argv[2:] = [name]
            globals()[name]()
            return
        _, status = os.waitpid(pid, 0)
        print(name, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
