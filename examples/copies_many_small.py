#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A batch is sent as hundreds of small copies, one for each sample's tensor.

A copy costs the host 10 µs and more, however few bytes it moves. Cure: pack them into one tensor on
the host, send that, and split it on the GPU.
"""

import torch

import common

PIECES = 512


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model(layers=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    pieces = [torch.rand(common.WIDTH // 2) for _ in range(PIECES)]

    for _ in range(args.steps):
        with truth.mistake():
            if args.cured:
                images = torch.cat(pieces).to(common.DEVICE)
            else:
                images = [piece.to(common.DEVICE) for piece in pieces]  # MISTAKE: 512 copies
        images = (images if args.cured else torch.cat(images)).view(-1, common.WIDTH)
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
