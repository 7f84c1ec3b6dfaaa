#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A frozen part of the model is left on the CPU.

Activations are copied down, computed on slowly, and copied up again; the GPU waits for all of it.
(A part that is trained costs the same again in the backward pass.) Cure: the whole model on the GPU.
"""

import torch
from torch import nn

import common


class Mixed(nn.Module):
    def __init__(self, cured):
        super().__init__()
        self.first, self.last = common.make_model(3), common.make_model(3)
        self.device = common.DEVICE if cured else torch.device("cpu")
        self.middle = common.make_model(3, device=self.device)  # MISTAKE

    def forward(self, x, truth):
        x = self.first(x)
        with truth.mistake(), torch.no_grad():
            extra = self.middle(x.to(self.device))  # MISTAKE: on the CPU
            extra = extra.to(common.DEVICE)
        return self.last(x + extra)


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = Mixed(args.cured)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        loss = model(images, truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
