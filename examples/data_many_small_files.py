#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every sample is a small file of its own.

Opening a file costs the same for 4 KiB as for 4 GiB: on a network file system about half a
millisecond of round trips, which a sleep stands for here, since a local disk's cache would hide it.
Cure: one packed file, mapped into memory; a batch is a slice of it.
"""

import pathlib
import tempfile
import time

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

import common

OPEN_COST = 0.0005  # seconds that a network file system takes to open a file
SAMPLES, BATCH = 192, 32


def write(directory):
    data = numpy.random.default_rng(0).random((SAMPLES, common.WIDTH), dtype=numpy.float32)
    for index, sample in enumerate(data):
        sample.tofile(directory / f"{index}.bin")
    data.tofile(directory / "packed.bin")


def open_file(path):
    time.sleep(OPEN_COST)
    return open(path, "rb")


class Files(Dataset):
    def __init__(self, directory):
        self.directory = directory

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        with open_file(self.directory / f"{index}.bin") as file:  # MISTAKE: 32 files for a batch
            return torch.from_numpy(numpy.frombuffer(file.read(), dtype=numpy.float32).copy())


def batches_of_map(directory):
    packed = numpy.memmap(directory / "packed.bin", numpy.float32, "r", shape=(SAMPLES, common.WIDTH))
    for first in range(0, SAMPLES, BATCH):
        yield torch.from_numpy(packed[first : first + BATCH].copy())


def endless(epochs):
    while True:
        yield from epochs()


def train(args, directory):
    truth = common.Truth(args.truth)
    loader = DataLoader(Files(directory), batch_size=BATCH)
    batches = endless((lambda: batches_of_map(directory)) if args.cured else loader.__iter__)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(args.steps):
        with truth.mistake():
            images = next(batches)  # MISTAKE
        images = images.to(common.DEVICE)
        images = images.repeat_interleave(8, dim=0)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


def main():
    args = common.options(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        write(pathlib.Path(directory))
        train(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
