#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Synchronisations that do not look like one: a Python `if` on a tensor, a boolean mask, a print.

Each needs a value, or the number of values, on the host. Cure: torch.where and masks that keep their
shape, and no value of a tensor on the host inside the loop.
"""

import torch
from torch import nn

import common


class Careful(nn.Module):
    def __init__(self, layers, truth, cured):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(common.WIDTH, common.WIDTH, device=common.DEVICE) for _ in range(layers)
        )
        self.truth, self.cured = truth, cured

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x).relu()
            if self.cured:
                x = torch.where(x.isfinite(), x, 0.0)
                continue
            bad = ~x.isfinite()
            with self.truth.mistake():
                if index % 2 == 0:
                    if bad.any():  # MISTAKE: `if` on a tensor waits for the GPU
                        x = torch.nan_to_num(x)
                else:
                    x.detach()[bad]  # MISTAKE: the result's size must be known to the host
        return x


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = Careful(16, truth, args.cured)
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
