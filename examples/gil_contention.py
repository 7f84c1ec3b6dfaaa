#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A Python thread computes beside the training and holds the interpreter's lock.

Only one thread of a process runs Python at a time, and it keeps the lock for 5 ms before another may
have it. The launching thread lets go of it in every call that may block, such as a read from a disk,
and waits 5 ms to get it back. Cure: another process, or work that releases the lock (numpy, native
code).
"""

import multiprocessing
import threading
import time

import torch

import common


def count(stop):
    """Stands for parsing, tokenising, averaging metrics in Python."""
    number = 0
    while not stop.is_set():
        for _ in range(1000):  # HOLDS the lock
            number += 1  # HOLDS the lock


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    if args.cured:
        context = multiprocessing.get_context("spawn")
        stop = context.Event()
        beside = context.Process(target=count, args=(stop,))
    else:
        stop = threading.Event()
        beside = threading.Thread(target=count, args=(stop,))
    beside.start()
    for _ in range(args.steps):
        with truth.mistake():
            for _ in range(4):
                time.sleep(0.0002)  # MISTAKE shows here: a read of 0.2 ms, then 5 ms for the lock
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    stop.set()
    beside.join()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
