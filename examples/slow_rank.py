#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two ranks train together, and one of them loads its data more slowly.

They meet in every step, in the all-reduce of the gradients: the fast rank waits there for the slow
one, so both are as slow as the slowest. Cure: find out what the slow rank does; here its share of
the samples is larger.
"""

import os
import socket
import sys
import time

import torch
from torch import distributed, multiprocessing

import common


def average(model, truth):
    """As DistributedDataParallel does, without its buckets; by way of the CPU, as gloo needs it."""
    gradients = torch.cat([p.grad.flatten()[:1000] for p in model.parameters()]).cpu()
    with truth.mistake():
        distributed.all_reduce(gradients)  # MISTAKE shows here: the fast rank waits
    return gradients.to(common.DEVICE)


def rank_main(rank, args, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )
    truth = common.Truth(args.truth and f"{args.truth}.{rank}")
    model = common.make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    images = torch.rand(common.BATCH, common.WIDTH, device=common.DEVICE)
    for _ in range(args.steps):
        if rank == 1 and not args.cured:
            time.sleep(0.025)  # rank 1 alone reads twice as many samples
        loss = model(images).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average(model, truth)
        optimizer.step()
        truth.step()
    common.finish(truth, loss)
    distributed.destroy_process_group()


def main():
    args = common.options(__doc__)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=rank_main, args=(r, args, port)) for r in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


if __name__ == "__main__":
    main()
