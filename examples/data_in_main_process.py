#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches are loaded by the training process itself (num_workers=0).

Nobody prepares the next batch while the GPU computes: the process that should launch kernels reads
24 samples first, and the GPU waits. Cure: workers, which load ahead.
"""

import time

import torch
from torch.utils.data import DataLoader, Dataset

import common


class Samples(Dataset):
    """Each sample takes a millisecond to read, as from a disk."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((common.WIDTH,), index / self.length)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    loader = DataLoader(
        Samples(args.steps * 24),
        batch_size=24,
        num_workers=4 if args.cured else 0,
        pin_memory=args.cured,
        prefetch_factor=4 if args.cured else None,
    )
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    batches = iter(loader)
    for _ in range(args.steps):
        with truth.mistake():
            images = next(batches)  # MISTAKE: loads 24 samples here and now
        images = images.to(common.DEVICE, non_blocking=args.cured)
        images = images.repeat_interleave(10, dim=0)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
