#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Batches lie in pageable memory, so each copy to the GPU holds the host up.

The driver must copy pageable memory through a buffer of its own and the call returns only then.
Cure: pinned memory (pin_memory=True in a DataLoader) and non_blocking=True.
"""

import torch

import common

INPUTS = 8 * common.WIDTH


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model(layers=5, inputs=INPUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.rand(common.BATCH, INPUTS) for _ in range(2)]
    if args.cured:
        batches = [batch.pin_memory() for batch in batches]

    for step in range(args.steps):
        with truth.mistake():
            images = batches[step % 2].to(common.DEVICE, non_blocking=args.cured)  # MISTAKE
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
