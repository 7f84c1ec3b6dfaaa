#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Activations that wait on the host for backward, though they would fit.

torch.autograd.graph.save_on_cpu copies each tensor that backward needs to the host, and back when it
is needed: twice its size over the bus in every step. Cure: keep them on the GPU; where they do not
fit, compute them again (torch.utils.checkpoint).
"""

import contextlib

import torch

import common


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        keep = (contextlib.nullcontext() if args.cured
                else torch.autograd.graph.save_on_cpu(pin_memory=True))
        with truth.mistake(), keep:
            loss = model(images).square().mean()  # MISTAKE: what is saved for backward goes to the host
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
