#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The garbage collector runs in the middle of every step.

With many Python objects alive (a data set as lists of dicts) one collection looks at all of them.
Here gc.collect() is called by hand, which some programs do "to save memory". Cure: don't; and
gc.freeze() after loading, or gc.disable() in the loop.
"""

import gc

import torch

import common


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)
    gc.collect()
    gc.freeze()  # PyTorch's own objects: the example is about those below
    samples = [{"name": str(i), "labels": [i, i + 1]} for i in range(400_000)]

    for _ in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        with truth.mistake():
            if not args.cured:
                gc.collect()  # MISTAKE: looks at 800,000 objects
        loss.backward()
        optimizer.step()
        truth.step()
    del samples
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
