#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Heavy transforms on the CPU, in the way of every step.

A batch is blurred and normalised with numpy. Cure: send raw bytes and do it on the GPU, where it is
a few kernels.
"""

import numpy
import torch
from torch.nn import functional

import common

BATCH = 24


def blur_on_cpu(pictures):
    """Running means over rows, then normalised: all in one thread of the host."""
    out = pictures.astype(numpy.float32)
    for shift in range(1, 500):
        out += numpy.roll(pictures, shift, axis=1)
    out /= 500
    return torch.from_numpy((out - out.mean()) / out.std())


def blur_on_gpu(pictures):
    pictures = torch.from_numpy(pictures).to(common.DEVICE)
    out = functional.avg_pool1d(pictures.float(), 25, stride=1, padding=12)
    return (out - out.mean()) / out.std()


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    raw = numpy.random.default_rng(0).integers(0, 255, (BATCH, 16 * common.WIDTH), dtype=numpy.uint8)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    for _ in range(args.steps):
        with truth.mistake():
            if args.cured:
                images = blur_on_gpu(raw)
            else:
                images = blur_on_cpu(raw)  # MISTAKE: 40 ms of numpy
        images = images[:, : common.WIDTH].to(common.DEVICE)
        images = images.repeat_interleave(10, dim=0)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
