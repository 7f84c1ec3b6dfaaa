# SPDX-License-Identifier: Apache-2.0
"""The whole stack of each call in programs of real PyTorch."""

import re
import sys

import pytest
from recorded import Run

WHOLE = ["--step", "none"]
PROGRAM = """
import sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return 2 * x * g

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, i):
        return torch.full((8,), float(i))

def collate(rows):
    return torch.stack(rows)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        x = checkpoint(self.part, x, use_reentrant=False)
        return Square.apply(self.b(x)).mean()

    def part(self, x):
        return torch.nn.functional.gelu(self.a(x))

net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
net.a.weight.register_hook(lambda g: g * 2)

def main():
    loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=2, collate_fn=collate,
                                         pin_memory=True)
    for x in loader:
        loss = net(x.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()

main()
if sys.argv[1:] == ["compile"]:
    @torch.compile
    def compiled(x, y):
        return (torch.nn.functional.gelu(x) * y).sum()
    for _ in range(3):
        x = torch.randn(64, 64, device="cuda", requires_grad=True)
        y = torch.randn(64, 64, device="cuda")
        compiled(x, y).backward()
        x.grad.sum().item()
"""


INLINED = 4  # functions in a place of the eval function, at most
PYTHON_FRAME = re.compile(r".+\(\d+\): ")


def stacks(run):
    """Of each call: the Python stack alone, the frames of the whole one, which of these are Python's, and
    which run Python code."""
    for event in run.events("cuda_runtime", "cuda_driver"):
        frames = event["args"].get("Native stack", "").split(";")
        python = [bool(PYTHON_FRAME.match(f)) for f in frames]
        runs = [f.startswith("_PyEval_EvalFrameDefault") for f in frames]
        yield event["args"].get("Call stack", ""), frames, python, runs


@pytest.mark.parametrize("how", ["eager", "compile"])
def test_python_stands_among_native_frames(build_dir, clean_environment, tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = Run(build_dir, clean_environment, tmp_path, WHOLE, [sys.executable, program, how])
    assert run.result.returncode == 0, run.result.stderr
    assert "native alone" not in run.notices()
    seen, functions, without = 0, set(), 0
    for alone, frames, is_python, runs in stacks(run):
        python = [f for f, is_one in zip(frames, is_python) if is_one]
        cut = frames[-1] == "..."
        assert len(frames) - len(python) - cut > 3, frames
        known = alone.split(";") if alone else []
        n = min(len(known), len(python)) if cut else min(len(known), 32)
        assert python[:n] == known[:n], (python, known)
        if not cut and len(known) < 32:
            assert len(python) == len(known)
        # Each group is followed by the native frame that runs it, and each such frame has a group. What
        # was inlined into that frame (do_call_core, say) stands before it.
        for i in range(len(frames) - INLINED - cut):
            if is_python[i] and not is_python[i + 1]:
                assert any(runs[i + 1 : i + 1 + INLINED]), frames[i - 1 : i + 5]
            if runs[i] and i > 0:
                assert any(is_python[max(0, i - INLINED) : i]), frames[max(0, i - 5) : i + 2]
        without += not known
        seen += 1
        functions |= {f.rsplit(" ", 1)[1] for f in python}
    assert seen > 100
    wanted = {"main", "Net.part", "Square.forward", "Square.backward", "<lambda>", "AdamW.step"}
    assert {w.split(".")[-1] for w in wanted} <= {f.split(".")[-1] for f in functions}, functions
    if how == "compile":
        assert any(f.startswith("call") or "triton" in f for f in functions), functions
