#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory is pinned and released again in every step.

Pinning makes the kernel lock every page, some 0.2 ms per MiB, and releasing waits for the GPU. Cure:
pin one buffer, before the loop, and use it again.
"""

import torch

import common

INPUTS = 8 * common.WIDTH


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model(layers=4, inputs=INPUTS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.rand(common.BATCH, INPUTS)
    runtime, size = torch.cuda.cudart(), batch.numel() * batch.element_size()
    if args.cured:
        runtime.cudaHostRegister(batch.data_ptr(), size, 0)

    for _ in range(args.steps):
        with truth.mistake():
            if not args.cured:
                runtime.cudaHostRegister(batch.data_ptr(), size, 0)  # MISTAKE
        images = batch.to(common.DEVICE, non_blocking=True)
        if not args.cured:
            torch.cuda.current_stream().synchronize()
            runtime.cudaHostUnregister(batch.data_ptr())
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
