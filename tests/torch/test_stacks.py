# SPDX-License-Identifier: Apache-2.0
"""The whole stack of each call in programs of real PyTorch."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from recorded import Run

WHOLE = ["--step", "none"]
PROGRAM = """
import ctypes, sys
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
eval_function = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value
print("EVAL", eval_function, flush=True)
"""


def eval_size():
    """Of the function that runs Python frames, from the symbols of this interpreter."""
    name = sysconfig.get_config_var("INSTSONAME") or ""
    library = Path(sysconfig.get_config_var("LIBDIR") or "") / name
    file = library if name.endswith((".so", ".so.1.0")) and library.exists() else sys.executable
    out = subprocess.run(["readelf", "--dyn-syms", "--wide", file], capture_output=True, text=True)
    for line in out.stdout.splitlines():
        words = line.split()
        if len(words) == 8 and words[7] == "_PyEval_EvalFrameDefault":
            return int(words[2])
    pytest.skip("this interpreter shows no symbols")


def stacks(run):
    begin = int(run.result.stdout.split("EVAL ")[1].split()[0])
    end = begin + eval_size()
    for event in run.events("cuda_runtime", "cuda_driver"):
        whole = event["args"].get("Native stack", "").split(";")
        frames = [int(f, 16) if f.startswith("0x") else f for f in whole]
        runs = [isinstance(f, int) and begin < f <= end for f in frames]
        yield event["args"].get("Call stack", ""), frames, runs


@pytest.mark.parametrize("how", ["eager", "compile"])
def test_python_stands_among_native_frames(build_dir, clean_environment, tmp_path, how):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run = Run(build_dir, clean_environment, tmp_path, WHOLE, [sys.executable, program, how])
    assert run.result.returncode == 0, run.result.stderr
    assert "native alone" not in run.notices()
    seen, functions, without = 0, set(), 0
    for alone, frames, runs in stacks(run):
        python = [f for f in frames if isinstance(f, str) and f != "..."]
        cut = frames[-1] == "..."
        assert len([f for f in frames if isinstance(f, int)]) > 3, frames
        known = alone.split(";") if alone else []
        n = min(len(known), len(python)) if cut else min(len(known), 32)
        assert python[:n] == known[:n], (python, known)
        if not cut and len(known) < 32:
            assert len(python) == len(known)
        # Each group is followed by the native frame that runs it, and each such frame has a group.
        for i, frame in enumerate(frames[:-1]):
            if isinstance(frame, str) and not isinstance(frames[i + 1], str):
                assert runs[i + 1], (i, frames)
            if runs[i] and i > 0:
                assert isinstance(frames[i - 1], str), (i, frames)
        without += not known
        seen += 1
        functions |= {f.rsplit(" ", 1)[1] for f in python}
    assert seen > 100
    wanted = {"main", "Net.part", "Square.forward", "Square.backward", "<lambda>", "AdamW.step"}
    assert {w.split(".")[-1] for w in wanted} <= {f.split(".")[-1] for f in functions}, functions
    if how == "compile":
        assert any(f.startswith("call") or "triton" in f for f in functions), functions
