# SPDX-License-Identifier: Apache-2.0
"""Starves the GPU with workers that are slow in one way: worker_kinds.py KIND.

Prints how many workers there are. The line that holds up a worker is marked with its kind.
"""

import os
import multiprocessing
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset

LENGTH = 0.06
STEPS = 24


def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: sum(range(200))  # noqa: E701  compute, too_many, spawn


class Computes(Dataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        burn(LENGTH)
        return torch.full((16,), float(index))


class TooMany(Computes):
    pass


class Sleeps(Computes):
    def __getitem__(self, index):
        time.sleep(LENGTH)  # sleep
        return torch.full((16,), float(index))


class Opens(Computes):
    """A file that takes its time to open, as on a network: a FIFO, opened late at the other end."""

    def __init__(self):
        self.directory = tempfile.mkdtemp()
        self.paths = [os.path.join(self.directory, str(i)) for i in range(STEPS)]
        for path in self.paths:
            os.mkfifo(path)

    def serve(self):
        def one(path):
            time.sleep(LENGTH)
            os.close(os.open(path, os.O_WRONLY))

        for path in self.paths:
            one(path)

    def __getitem__(self, index):
        os.close(os.open(self.paths[index], os.O_RDONLY))  # storage
        return torch.full((16,), float(index))


class Asks(Computes):
    """A store at the other end of a pipe, of which there is one."""

    def __init__(self):
        self.near, self.far = multiprocessing.Pipe()

    def serve(self):
        for _ in range(STEPS):
            self.far.recv()
            time.sleep(LENGTH)
            self.far.send(1.0)

    def __getitem__(self, index):
        self.near.send(index)
        return torch.full((16,), self.near.recv())  # input


class Locks(Computes):
    def __init__(self):
        self.lock = multiprocessing.Lock()

    def __getitem__(self, index):
        self.lock.acquire()  # lock
        time.sleep(LENGTH)
        self.lock.release()
        return torch.full((16,), float(index))


class Made(Computes):
    """A function that is made in the worker, each time anew: its code is nowhere in the parent."""

    def __getitem__(self, index):
        text = "\n" * (index % 3) + "def made_%d():\n    wait(%f)\n" % (os.getpid(), LENGTH)
        names = {"wait": time.sleep}
        exec(compile(text, "/made/by_%d.py" % os.getpid(), "exec"), names)
        names["made_%d" % os.getpid()]()
        return torch.full((16,), float(index))


KINDS = {
    "compute": (Computes, 2, {}),
    "too_many": (TooMany, 6, {}),
    "spawn": (Computes, 2, {"multiprocessing_context": "spawn"}),
    "sleep": (Sleeps, 2, {}),
    "storage": (Opens, 1, {}),
    "input": (Asks, 1, {}),
    "lock": (Locks, 4, {}),
    "made": (Made, 2, {}),
}


def main():
    make, workers, more = KINDS[sys.argv[1]]
    if sys.argv[1] == "too_many":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    model = torch.nn.Linear(16, 16).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = make()
    server = None
    if hasattr(data, "serve"):
        server = multiprocessing.Process(target=data.serve, daemon=True)
        server.start()
    loader = DataLoader(data, batch_size=1, num_workers=workers, prefetch_factor=1, **more)
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
    print("done", workers, loss.item() == loss.item())
    if server is not None:
        server.terminate()
    sys.stdout.flush()
    time.sleep(0.3)  # on the simulated device PyTorch may abort where autograd's thread is not at rest


if __name__ == "__main__":
    main()
