#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each sample is read by a request of its own from a slow store (a network disk, an object store).

The store here is a second process behind a pipe that takes 1.2 ms for each answer, however small, as
a network file system does. Cure: read a whole shard per request, before it is needed (here: all of
it, once), or copy the data set to a local disk.
"""

import multiprocessing
import time

import torch
from torch.utils.data import DataLoader, Dataset

import common

LATENCY = 0.0012  # seconds for an answer


def store(pipe):
    """Stands for the far end: answers each list of indices with that many samples."""
    while (indices := pipe.recv()) is not None:
        time.sleep(LATENCY)
        pipe.send([float(i) for i in indices])


class Samples(Dataset):
    def __init__(self, length, pipe, whole_shard):
        self.length, self.pipe = length, pipe
        self.cache = self.request(range(length)) if whole_shard else None

    def request(self, indices):
        self.pipe.send(list(indices))
        return self.pipe.recv()

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        value = self.cache[index] if self.cache else self.request([index])[0]
        return torch.full((common.WIDTH,), value)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    near, far = multiprocessing.Pipe()
    server = multiprocessing.Process(target=store, args=(far,), daemon=True)
    server.start()
    loader = DataLoader(Samples(args.steps * 24, near, args.cured), batch_size=24)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    batches = iter(loader)
    for _ in range(args.steps):
        with truth.mistake():
            images = next(batches)  # MISTAKE: 24 requests, each waited for
        images = images.to(common.DEVICE)
        images = images.repeat_interleave(10, dim=0)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    near.send(None)
    server.join()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
