# SPDX-License-Identifier: Apache-2.0
"""Trains beside a thread that computes in Python, or in zlib, which lets go of the GIL.

threads_beside.py python|zlib|nothing
"""

import os
import sys
import threading
import zlib

import torch

stop = []


def in_python():
    counts = {}
    while not stop:
        for i in range(1000):
            counts[i % 100] = counts.get(i % 100, 0) + 1  # HOLDS


def in_zlib():
    data = os.urandom(8 << 20)
    while not stop:
        zlib.compress(data)


def main():
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(20)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beside = {"python": in_python, "zlib": in_zlib, "nothing": None}[sys.argv[1]]
    threads = [threading.Thread(target=beside)] if beside else []
    x = torch.ones(8, 64, device="cuda")
    for step in range(40):
        if step == 5:  # imports and the like are behind it
            for thread in threads:
                thread.start()
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    stop.append(1)
    for thread in threads:
        thread.join()
    print("done", loss.item())


if __name__ == "__main__":
    main()
