#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The model is evaluated after every second step, and the score is computed on the CPU.

The GPU stands still while the host sorts predictions. Cure: evaluate once per epoch, and compute the
score on the GPU.
"""

import torch

import common


@torch.no_grad()
def evaluate(model, images):
    predictions = model(images).cpu()  # MISTAKE: from here on the GPU has nothing to do
    score = 0.0
    for _ in range(3):
        score += predictions.sort(dim=1).values[:, -1].mean().item()
    return score


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for step in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
        with truth.mistake():
            if not args.cured and step % 2 == 1:
                evaluate(model, images)  # MISTAKE
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
