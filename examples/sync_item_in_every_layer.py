#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A statistic of every layer is read to the host with .item(), in every step.

Each .item() waits until the GPU is done, so nothing is queued behind it, and the GPU waits for the
next launch. Cure: keep statistics on the GPU and read them seldom, all at once.
"""

import torch
from torch import nn

import common


class Watched(nn.Module):
    def __init__(self, layers, truth, cured):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(common.WIDTH, common.WIDTH, device=common.DEVICE) for _ in range(layers)
        )
        self.truth, self.cured, self.largest = truth, cured, []

    def forward(self, x):
        self.largest = []
        for layer in self.layers:
            x = layer(x).relu()
            largest = x.detach().amax()
            with self.truth.mistake():
                if not self.cured:
                    largest = largest.item()  # MISTAKE: waits for the GPU, 16 times a step
            self.largest.append(largest)
        return x


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = Watched(16, truth, args.cured)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
