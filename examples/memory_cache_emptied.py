#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.empty_cache() in every step, "to save memory".

It gives all free blocks back to the driver, which must wait for the GPU to do so; the next step asks
for all of them again, each with a cudaMalloc. Cure: leave the cache alone.
"""

import torch

import common


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        with truth.mistake():
            scratch = [torch.empty(8 << 20, device=common.DEVICE) for _ in range(4)]
            del scratch
            if not args.cured:
                torch.cuda.empty_cache()  # MISTAKE: cudaFree, and cudaMalloc in the next step
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
