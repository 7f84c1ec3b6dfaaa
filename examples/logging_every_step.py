#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every step is logged, with tensors in the message, to a slow place.

To become text a tensor is copied to the host, which waits for the GPU; then the handler writes and
flushes while nothing is queued. Cure: log every 100th step, and let a queue write
(logging.handlers.QueueHandler).
"""

import logging
import time

import torch

import common


class SlowHandler(logging.Handler):
    """Stands for a log on a network disk or in a web service: 12 ms for a line."""

    def emit(self, record):
        self.format(record)
        time.sleep(0.012)  # MISTAKE: in the training's own thread


def main():
    args = common.options(__doc__)
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)
    logger = logging.getLogger("training")
    logger.addHandler(SlowHandler())
    logger.setLevel(logging.INFO)

    for step in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
        with truth.mistake():
            if not args.cured or step % 100 == 99:
                logger.info("step %d: loss %s", step, loss.detach())  # MISTAKE
    common.finish(truth, loss)


if __name__ == "__main__":
    main()
