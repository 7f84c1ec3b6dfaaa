#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors are copied around on the GPU: clones that nobody needs, layouts changed back and forth.

Each moves all its bytes through the GPU's memory twice. Cure: no .clone() of what is not changed,
and one layout throughout (channels_last for convolutions).
"""

import torch
from torch import nn

import common


class Copying(nn.Module):
    def __init__(self, layers, cured):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(common.WIDTH, common.WIDTH, device=common.DEVICE) for _ in range(layers)
        )
        self.cured = cured

    def forward(self, x):
        for layer in self.layers:
            if not self.cured:
                x = x.clone()  # MISTAKE: nobody changes x
                x = x.t().contiguous().t()  # MISTAKE: another layout for no reason
            x = layer(x).relu()
        return x


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = Copying(4, args.cured)
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
