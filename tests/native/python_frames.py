# SPDX-License-Identifier: Apache-2.0
"""Native stacks in an interpreter and the libraries that it loads. Argument: the probe module."""

import ctypes
import json
import re
import sys
import threading

probe = ctypes.CDLL(sys.argv[1])
probe.gpubusy_native_start()
depths = []


def look(*_):
    frames = probe.gpubusy_native_compare()
    assert frames > 0, f"stacks differ: {frames}"
    depths.append(frames)
    return 0


def recurse(depth, then):
    if depth == 0:
        return then()
    # Through C, so that there are native frames between the Python ones.
    return list(map(lambda _: recurse(depth - 1, then), [0]))


def failing():
    try:
        raise ValueError
    except ValueError:
        look()
        raise


def all_ways():
    look()
    recurse(12, look)
    sorted([3, 1, 2], key=look)
    re.sub("a", lambda m: str(look()), "aaa")
    json.loads("[{}, {}]", object_hook=look)
    next(x for x in [look()] if x == 0)
    try:
        recurse(3, failing)
    except ValueError:
        pass
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(look)
    numbers = (ctypes.c_int * 4)(3, 2, 1, 0)
    ctypes.CDLL(None).qsort(numbers, 4, 4, compare)


for _ in range(3):
    all_ways()
thread = threading.Thread(target=all_ways)
thread.start()
thread.join()
if len(sys.argv) > 2:  # more libraries to go through
    import torch

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            look()
            return x * 2

        @staticmethod
        def backward(ctx, g):
            look()
            return g * 2

    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        Look.apply(x).sum().backward()
        torch.utils.data.default_collate([1, 2])
        torch.nn.Linear(3, 3).apply(look)
print(f"{len(depths)} stacks of {min(depths)} to {max(depths)} frames")
