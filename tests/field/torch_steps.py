# SPDX-License-Identifier: Apache-2.0
"""Loops of 100 iterations whose steps several sources could count: torch_steps.py FILE. Each loop runs
in a forked child of its own (torch is imported once, and no device is touched before), and FILE gets
the children's process ids by loop."""

import json
import os
import sys
import warnings

import torch
from torch import nn, optim

warnings.filterwarnings("ignore")
ITERATIONS = 100


def model():
    return nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)).cuda()


def loss(net):
    return net(torch.ones(4, 32, device="cuda")).square().mean()


def two_optimizers():
    body, head = model(), nn.Linear(8, 1).cuda()
    a, b = optim.AdamW(body.parameters()), optim.SGD(head.parameters(), 0.1)
    for _ in range(ITERATIONS):
        head(body(torch.ones(4, 32, device="cuda"))).mean().backward()
        a.step()
        b.step()
        a.zero_grad()
        b.zero_grad()


def accumulation():
    net = model()
    optimizer = optim.SGD(net.parameters(), 0.1)
    for _ in range(ITERATIONS):
        for _ in range(4):
            (loss(net) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()


def validation():
    net = model()
    optimizer = optim.Adam(net.parameters())
    for i in range(ITERATIONS):
        loss(net).backward()
        optimizer.step()
        optimizer.zero_grad()
        if i % 20 == 19:
            with torch.no_grad():
                for _ in range(10):
                    loss(net)


def explicit_marks():
    """The program marks its steps itself, with torch's own profiler, beside the optimizer."""
    net = model()
    optimizer = optim.SGD(net.parameters(), 0.1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                                schedule=torch.profiler.schedule(wait=90, warmup=0, active=1)) as p:
        for _ in range(ITERATIONS):
            with torch.profiler.record_function("step"):
                loss(net).backward()
                optimizer.step()
                optimizer.zero_grad()
            p.step()


def inference():
    net = model()
    with torch.no_grad():
        for _ in range(ITERATIONS):
            loss(net)


if __name__ == "__main__":
    pids = {}
    for loop in (two_optimizers, accumulation, validation, explicit_marks, inference):
        pid = os.fork()
        if pid == 0:
            loop()
            torch.cuda.synchronize()
            os._exit(0)
        pids[loop.__name__] = pid
        _, status = os.waitpid(pid, 0)
        print(loop.__name__, os.waitstatus_to_exitcode(status), flush=True)
    with open(sys.argv[1], "w") as file:
        json.dump(pids, file)
