# SPDX-License-Identifier: Apache-2.0
"""Makes many containers in each step, so that Python collects garbage by itself: HOW is "collects",
"disabled" (the same objects, no collections) or "computes" (as long, without objects)."""

import gc
import sys
import time

import torch

STEPS = 20


def make():
    out = []
    for _ in range(90_000):
        out.append([out])  # COLLECTS
    return len(out)


def compute():
    end = time.thread_time() + 0.06
    while time.thread_time() < end:
        sum(range(200))


def main(how):
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    gc.freeze()
    keep = [[i] for i in range(300_000)]
    if how == "disabled":
        gc.disable()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 64, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        compute() if how == "computes" else make()
    print("done", len(keep), loss.item() == loss.item())
    sys.stdout.flush()
    time.sleep(0.3)


main(sys.argv[1])
