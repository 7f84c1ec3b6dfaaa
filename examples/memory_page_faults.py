#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each step looks up rows in a mapped file that does not stay in memory.

A row that is not in memory is a page fault: the thread stands still until the disk has brought that one
page, one row after the other. Here the pages are given back before each step, which stands for a table
that is larger than the memory. Cure: read what is needed once and keep it, or ahead of time in another
thread, in large pieces.
"""

import mmap
import os
import random
import tempfile

import torch

import common

ROWS, ROW = 32768, 4096  # a page each
LOOK_UPS = 1000


def make_table():
    """A file of its own that goes with the process; not in /dev/shm, which is memory."""
    file = tempfile.TemporaryFile(dir="/var/tmp")
    for _ in range(ROWS // 1024):
        file.write(os.urandom(1024 * ROW))
    file.flush()
    os.fsync(file.fileno())
    return file


def give_back(file, table):
    """Stands for memory that others need: nothing of the file stays in it."""
    table.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    file = make_table()
    if args.cured:
        file.seek(0)
        table = file.read()
    else:
        table = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        table.madvise(mmap.MADV_RANDOM)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    random.seed(0)

    for _ in range(args.steps):
        places = [random.randrange(ROWS) * ROW for _ in range(LOOK_UPS)]
        with truth.mistake():
            if not args.cured:
                give_back(file, table)
            rows = [table[place] for place in places]  # MISTAKE: a page fault for each of them
        images = torch.tensor(rows, dtype=torch.float32).to(common.DEVICE)
        images = images[: common.BATCH, None].repeat(1, common.WIDTH)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
