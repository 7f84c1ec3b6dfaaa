#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An average of the weights is kept tensor by tensor: the host cannot launch as fast as the GPU works.

Each of 1,200 small tensors takes two launches of 10 µs for kernels of 2 µs. Cure: functions that take
whole lists (torch._foreach_*, fused optimizers), a CUDA graph, or torch.compile.
"""

import torch

import common


@torch.no_grad()
def average(averages, tensors, cured):
    if cured:
        torch._foreach_mul_(averages, 0.99)
        torch._foreach_add_(averages, tensors, alpha=0.01)
        return
    for mean, tensor in zip(averages, tensors):
        mean.mul_(0.99).add_(tensor, alpha=0.01)  # MISTAKE: 2,400 launches in a step


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # Scales and shifts, as norms have them: small, but many.
    tensors = [torch.ones(64, device=common.DEVICE) for _ in range(1200)]
    averages = [torch.zeros_like(tensor) for tensor in tensors]
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)

    for _ in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        with truth.mistake():
            average(averages, tensors, args.cured)
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
