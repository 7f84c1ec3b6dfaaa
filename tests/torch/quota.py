# SPDX-License-Identifier: Apache-2.0
"""Trains under a quota of processor time, which it enters when all is loaded.

quota.py MEMBERS_FILE STEPS CPU_MS: each step computes for so long before its launches.
"""

import os
import sys
import time

import torch

members, steps, cpu_ms = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(64, 512, device="cuda")


def prepare(ms):
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


def step():
    prepare(cpu_ms)
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss


step()
with open(members, "w") as file:
    file.write(str(os.getpid()))
for _ in range(steps):
    loss = step()
print("done", loss.item())
