#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers are started anew at the beginning of each epoch.

With short epochs that is often: 4 steps here, then two processes are forked and must fill their
queues again. Cure: persistent_workers=True, or as here one iterator over all epochs, whose queues
stay full as well.
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

import common

STEPS_PER_EPOCH = 4


class Samples(Dataset):
    def __init__(self, epochs):
        self.epochs = epochs

    def __len__(self):
        return self.epochs * STEPS_PER_EPOCH * 24

    def __getitem__(self, index):
        time.sleep(0.0002)  # a read from a disk
        return torch.full((common.WIDTH,), index / 100)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    epochs = args.steps // STEPS_PER_EPOCH
    loader = DataLoader(
        Samples(epochs if args.cured else 1),
        batch_size=24,
        num_workers=2,
        prefetch_factor=4,
    )
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for epoch in range(epochs):
        with truth.mistake():
            if epoch == 0 or not args.cured:
                batches = iter(loader)  # MISTAKE: forks two workers, whose queues are empty
            images = next(batches)
        for step in range(STEPS_PER_EPOCH):
            if step > 0:
                images = next(batches)
            images = images.to(common.DEVICE)
            images = images.repeat_interleave(10, dim=0)
            loss = model(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
