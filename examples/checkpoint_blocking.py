#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of the whole model every fourth step, written while the GPU waits.

torch.save copies every tensor to the host and writes the file before it returns. Cure: save less
often (here: at the end), or save a copy from a thread or another process.
"""

import pathlib
import tempfile

import torch

import common


def save(model, optimizer, directory):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, directory / "checkpoint.pt")  # MISTAKE: every fourth step waits for it


def train(args, directory):
    truth = common.Truth(args.truth)
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)
    every = args.steps if args.cured else 4

    for step in range(args.steps):
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        truth.step()
        if (step + 1) % every == 0:
            with truth.mistake():
                save(model, optimizer, directory)
    common.finish(truth, loss)


def main():
    args = common.options(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        train(args, pathlib.Path(directory))


if __name__ == "__main__":
    main()
