#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches of growing length on a GPU whose memory is nearly full.

No block that the allocator keeps is large enough for the next batch: cudaMalloc fails, the allocator
gives back all that it kept, which waits for the GPU, and asks again. Cure: one shape (pad to the
longest), or less memory.
"""

import torch

import common

LONGEST_MIB = 400


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for step in range(args.steps):
        length = LONGEST_MIB if args.cured else LONGEST_MIB - 2 * (args.steps - step)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with truth.mistake():
            mask = torch.empty(length << 20, dtype=torch.uint8, device=common.DEVICE)  # MISTAKE
            del mask
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
