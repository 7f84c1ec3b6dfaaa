# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together, in forked children (torch is imported once): torch_ranks.py DIRECTORY RANKS
PROGRAM. They meet in each step in an all-reduce of gloo's."""

import gc
import json
import os
import pathlib
import sys
import time

import torch
from torch import distributed

DIRECTORY, RANKS = pathlib.Path(sys.argv[1]), int(sys.argv[2])


def train(steps, before_reducing):
    torch.set_num_threads(1)
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.ones(64, 256, device="cuda")
    edges = []
    for step in range(1, steps + 1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        gradients = model.weight.grad[0].cpu()
        before_reducing(step)
        distributed.all_reduce(gradients)  # reduces
        optimizer.step()
        edges.append(time.monotonic_ns())
    loss.item()
    return edges


def collections(rank, frozen=False):
    """A million containers; each rank collects every 20 steps, half a period after the other one."""
    gc.disable()
    alive = [[i] for i in range(1_000_000)]
    if frozen:
        gc.freeze()

    collected = []

    def collect(step):
        if step % 20 == 10 * rank:
            begin = time.monotonic_ns()
            gc.collect()  # collects
            collected.append((begin, time.monotonic_ns()))

    edges = train(65, collect)
    del alive
    (DIRECTORY / f"rank{rank}.json").write_text(json.dumps({"edges": edges, "collections": collected}))


def hang(rank):
    """The last rank does not come to its 50th all-reduce until it may."""
    def wait(step):
        if step == 50 and rank == RANKS - 2:
            (DIRECTORY / "hangs").touch()
            while not (DIRECTORY / "go").exists():
                time.sleep(0.05)  # hangs

    train(60, wait)


PROGRAMS = {"collections": collections, "frozen": lambda rank: collections(rank, True), "hang": hang}


def main():
    # What this imports takes longer than a whole program here.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
            distributed.init_process_group("gloo", init_method=f"file://{DIRECTORY}/meet", rank=rank,
                                           world_size=RANKS)
            PROGRAMS[sys.argv[3]](rank)
            distributed.destroy_process_group()
            return
        pids.append(pid)
    print([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids], flush=True)


if __name__ == "__main__":
    main()
