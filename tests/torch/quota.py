# SPDX-License-Identifier: Apache-2.0
"""Trains under a quota of processor time, which it enters when all is loaded.

quota.py GROUP STEPS CPU_MS TRUTH [WORKERS]: each step computes for so long before its launches; with
WORKERS, so many loader workers do it. TRUTH gets what the kernel counted, behind each step from the first
on: throttled time of the group, and the time for which this thread waited for a processor.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

group, steps, cpu_ms, truth = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
workers = int(sys.argv[5]) if len(sys.argv) > 5 else 0
torch.set_num_threads(1)
model = torch.nn.Linear(512, 512, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(64, 512, device="cuda")


def prepare(ms):
    until = time.thread_time() + ms / 1e3
    while time.thread_time() < until:
        pass


class Samples(Dataset):
    def __len__(self):
        return steps

    def __getitem__(self, index):
        prepare(cpu_ms)
        return torch.zeros(64, 512)


def step(batch):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def counted():
    stat = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    throttled_ns = (int(stat["throttled_time"]) if "throttled_time" in stat
                    else int(stat["throttled_usec"]) * 1000)
    return {"time_ns": time.monotonic_ns(), "throttled_ns": throttled_ns,
            "waited_ns": int(Path("/proc/self/schedstat").read_text().split()[1])}


def batches():
    if workers:
        for batch in DataLoader(Samples(), num_workers=workers, batch_size=None):
            yield batch.to("cuda")
    for _ in range(0 if workers else steps):
        prepare(cpu_ms)
        yield x


step(x)
(group / "cgroup.procs").write_text(str(os.getpid()))
log = [counted()]
for batch in batches():
    loss = step(batch)
    log.append(counted())
Path(truth).write_text(json.dumps(log))
print("done", loss.item())
