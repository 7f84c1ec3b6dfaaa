#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies are pinned and asynchronous, but on the stream of the kernels: they take turns.

The GPU has engines for copies beside those for kernels; a stream works in order, so on one stream
they never run together. Cure: a second stream copies the next batch meanwhile.
"""

import torch

import common

INPUTS = 8 * common.WIDTH


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model(layers=5, inputs=INPUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.rand(common.BATCH, INPUTS).pin_memory() for _ in range(2)]
    kernels = torch.cuda.current_stream()
    copies = torch.cuda.Stream() if args.cured else kernels

    def copy(step):
        with torch.cuda.stream(copies):
            return batches[step % 2].to(common.DEVICE, non_blocking=True)  # MISTAKE

    ahead = copy(0)
    for step in range(args.steps):
        images = ahead
        kernels.wait_stream(copies)
        images.record_stream(kernels)
        if args.cured:
            ahead = copy(step + 1)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
        if not args.cured:
            with truth.mistake():
                ahead = copy(step + 1)
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
