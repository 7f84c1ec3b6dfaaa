# SPDX-License-Identifier: Apache-2.0
"""Idles the GPU on purpose, each step in another way, and writes down when, how and in which line.

gap_kinds.py TRUTH.json ROUNDS
"""

import ctypes
import fcntl
import gc
import io
import json
import logging
import mmap
import multiprocessing
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

LENGTH = 0.08
truth = []


class Slow(Dataset):
    """Begins with an item when it is asked for: what was fetched ahead would be no gap."""

    def __init__(self, asked):
        self.asked = asked

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        self.asked.acquire()
        time.sleep(LENGTH)
        return index


class Pictures(Dataset):
    """Decodes in the process that launches."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        end = time.monotonic() + LENGTH
        while time.monotonic() < end: Image.open(self.path).convert("L")  # noqa: E701
        return index


DECODE_LINE = Pictures.__getitem__.__code__.co_firstlineno + 2


def line():
    return sys._getframe(1).f_lineno


class Gaps:
    def __init__(self, directory):
        self.item = multiprocessing.Semaphore(0)
        self.loader = iter(DataLoader(Slow(self.item), num_workers=1, batch_size=1))
        path = os.path.join(directory, "picture.jpg")
        noise = np.random.default_rng(0).integers(0, 255, (256, 256, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path, "JPEG")
        self.pictures = iter(DataLoader(Pictures(path), num_workers=0))
        self.saved = os.path.join(directory, "saved.pt")
        self.large = torch.zeros(24 << 20, dtype=torch.uint8)
        self.objects = [[i] for i in range(120_000)]
        self.ask, self.answer = os.pipe(), os.pipe()
        feeder = "import os, sys, time\nwhile os.read(0, 1): time.sleep(%f); os.write(1, b'x')"
        self.feeder = subprocess.Popen([sys.executable, "-c", feeder % LENGTH],
                                       stdin=self.ask[0], stdout=self.answer[1])
        slow_end, log_end = os.pipe()
        fcntl.fcntl(log_end, fcntl.F_SETPIPE_SZ, 4096)
        self.log = logging.getLogger("gaps")
        self.log.propagate = False
        self.log.addHandler(logging.StreamHandler(os.fdopen(log_end, "w")))
        self.log.setLevel(logging.INFO)

        def drain():
            while os.read(slow_end, 4096):
                time.sleep(LENGTH / 4)

        threading.Thread(target=drain, daemon=True).start()
        self.fault = make_fault_page()
        # What was made for this is no garbage; each gap's collection has the same work.
        gc.collect()

    def workers(self):
        self.item.release()
        next(self.loader); return line()  # noqa: E702

    def decode(self):
        next(self.pictures)
        return DECODE_LINE

    def input(self):
        os.write(self.ask[1], b"x")
        os.read(self.answer[0], 1); return line()  # noqa: E702

    def gil(self):
        stop = []
        burner = threading.Thread(target=burn, args=(stop,))
        sys.setswitchinterval(LENGTH)
        burner.start(); time.sleep(0); at = line()  # noqa: E702
        stop.append(1)
        sys.setswitchinterval(0.005)
        burner.join()
        return at

    def page_fault(self):
        address, make_new = self.fault
        make_new()
        ctypes.string_at(address, 1); return line()  # noqa: E702

    def save(self):
        torch.save(self.large, self.saved); return line()  # noqa: E702

    def output(self):
        self.log.info("x" * (4 * 4096)); return line()  # noqa: E702

    def sleep(self):
        time.sleep(LENGTH); return line()  # noqa: E702

    def collect(self):
        gc.collect(); return line()  # noqa: E702

    def lock(self):
        event = threading.Event()
        threading.Timer(LENGTH, event.set).start()
        event.wait(); return line()  # noqa: E702

    def child(self):
        subprocess.run(["sleep", str(LENGTH)], check=True); return line()  # noqa: E702


def burn(stop):
    while not stop:
        pass


# A page that another process brings in after LENGTH, each time anew (userfaultfd). None where the
# system does not permit it.
UFFD_API = 0xC018AA3F
UFFDIO_REGISTER = 0xC020AA00
UFFDIO_ZEROPAGE = 0xC020AA04


def make_fault_page():
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(323, os.O_CLOEXEC)
    if handle < 0:
        return None
    page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    fcntl.ioctl(handle, UFFD_API, struct.pack("QQQ", 0xAA, 0, 0))
    fcntl.ioctl(handle, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", address, 4096, 1, 0)))
    if os.fork() == 0:
        libc.prctl(1, 9)  # PR_SET_PDEATHSIG: ends with its parent
        try:
            while os.read(handle, 32):
                time.sleep(LENGTH)
                fcntl.ioctl(handle, UFFDIO_ZEROPAGE,
                            bytearray(struct.pack("QQQq", address, 4096, 0, 0)))
        finally:
            os._exit(0)

    def make_new():
        page.madvise(mmap.MADV_DONTNEED)

    return address, make_new


def kept_off_ms():
    """What the threads of this process, gpubusy's with them, waited for a processor so far."""
    waited = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/schedstat") as file:
                waited += int(file.read().split()[1])
        except OSError:  # it has ended, or this kernel does not tell
            pass
    return waited / 1e6


def main():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def work():
        x = torch.ones(8, 64, device="cuda")
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    with tempfile.TemporaryDirectory() as directory:
        gaps = Gaps(directory)
        kinds = [k for k in vars(Gaps) if not k.startswith("_")]
        if gaps.fault is None:
            kinds.remove("page_fault")
        for _ in range(3):
            work()
        for _ in range(int(sys.argv[2])):
            for kind in kinds:
                begin = time.monotonic_ns()
                at = getattr(gaps, kind)()
                end = time.monotonic_ns()
                work()
                truth.append({"kind": kind, "line": at, "begin_ns": begin, "end_ns": end})
        kept_off = kept_off_ms()
        print("done", torch.ones(1, device="cuda").sum().item())
        gaps.feeder.kill()
        gaps.loader._shutdown_workers()
    with open(sys.argv[1], "w") as out:
        json.dump({"kinds": kinds, "gaps": truth, "kept_off_ms": kept_off}, out)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
