#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.cuda.synchronize() in every step, left over from a measurement.

The host prepares the next step's inputs for 8 ms, which would be hidden behind the GPU's work if the
host did not wait for it first. Cure: no synchronize() in the loop (CUDA events measure without it).
"""

import time

import torch

import common


def prepare():
    """What the host does for the next step; a sleep, so that it takes equally long everywhere."""
    time.sleep(0.008)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
        with truth.mistake():
            if not args.cured:
                torch.cuda.synchronize()  # MISTAKE: the GPU runs dry, then waits for prepare()
            prepare()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
