# SPDX-License-Identifier: Apache-2.0
"""What all examples share: options, a model that keeps the GPU busy, and a stopwatch for the mistake.

Each example is a plain PyTorch training with one mistake. `python examples/NAME.py` makes it,
`--cured` does not. The stopwatch is there to check a profiler by: it writes when the mistake's lines
ran and where each step ended, which is what a verdict about the run should say.
"""

import argparse
import contextlib
import json
import time

import torch
from torch import nn

DEVICE = torch.device("cuda")
WIDTH = 1024
BATCH = 256


def options(description, steps=24):
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--cured", action="store_true", help="without the mistake")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--truth", metavar="FILE", help="write when the mistake's lines ran (JSON)")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # the examples are to behave alike on small and large machines
    return args


def make_model(layers=6, width=WIDTH, inputs=None, device=DEVICE):
    """Linear layers of one width: about three times as much device time as `layers` products."""
    sizes = [inputs or width] + [width] * layers
    parts = [
        part
        for i in range(layers)
        for part in (nn.Linear(sizes[i], sizes[i + 1], device=device), nn.ReLU())
    ]
    return nn.Sequential(*parts)


class Truth:
    """When the mistake's lines ran, and where steps ended. Times: CLOCK_MONOTONIC ns."""

    def __init__(self, path):
        self.path, self.edges, self.mistakes = path, [], []

    @contextlib.contextmanager
    def mistake(self):
        begin = time.monotonic_ns()
        try:
            yield
        finally:
            self.mistakes.append((begin, time.monotonic_ns()))

    def step(self):
        """Behind each optimizer.step()."""
        self.edges.append(time.monotonic_ns())

    def write(self):
        if self.path:
            with open(self.path, "w") as file:
                json.dump({"edges": self.edges, "mistakes": self.mistakes}, file)


def finish(truth, loss):
    """Waits for the device, so that the program does not end before its work."""
    print(f"done, last loss {loss.item():.4f}", flush=True)
    truth.write()
