#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loader has workers, but too few: one worker prepares a batch in longer than the GPU takes.

Each sample takes 1.5 ms to read, so one worker needs 36 ms for a batch that the GPU is done with in
17 ms. Cure: more workers (as many as it takes: read time of a batch / step time, and one to spare).
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

import common


class Samples(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.0015)  # SLOW: a read from a disk
        return torch.full((common.WIDTH,), index / self.length)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    loader = DataLoader(
        Samples(args.steps * 24),
        batch_size=24,
        num_workers=6 if args.cured else 1,
        pin_memory=True,
        prefetch_factor=4 if args.cured else 2,
    )
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    batches = iter(loader)
    for _ in range(args.steps):
        with truth.mistake():
            images = next(batches)  # MISTAKE: the one worker has no batch ready
        images = images.to(common.DEVICE, non_blocking=True)
        images = images.repeat_interleave(10, dim=0)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
