# SPDX-License-Identifier: Apache-2.0
"""Native stacks of PyTorch: every name is the one that readelf has for the address."""

import bisect
import functools
import re
import subprocess
import sys

import pytest

from recorded import Run

# As many kinds of work as fit, for many different stacks.
MANY = """
import time, torch, torch.nn as nn, torch.nn.functional as F
x = torch.randn(8, 4, 16, 16, device="cuda", requires_grad=True)
m = torch.randn(16, 16, device="cuda", requires_grad=True)
losses = []
for name in ("sin cos tan exp log sqrt rsqrt abs neg sigmoid tanh relu erf floor ceil round sign atan "
             "sinh cosh log1p expm1 square reciprocal trunc frac digamma lgamma asinh").split():
    losses.append(getattr(torch, name)(x).sum())
for name in ("add sub mul div maximum minimum atan2 fmod pow remainder").split():
    losses.append(getattr(torch, name)(x, x + 1).mean())
for name in ("sum mean prod amax amin std var logsumexp cumsum cumprod softmax log_softmax").split():
    losses.append(getattr(torch, name)(x, dim=1).sum())
for name in ("gelu silu elu selu celu hardtanh softplus mish relu6 leaky_relu hardswish").split():
    losses.append(getattr(F, name)(x).sum())
losses += [(m @ m).sum(), torch.mm(m, m).sum(), torch.bmm(m[None], m[None]).sum(),
           torch.cat([x, x]).sum(), torch.stack([x, x]).sum(), x.flip(0).sum(), x.roll(1).sum(),
           x.permute(3, 2, 1, 0).contiguous().sum(), x.tril().sum(), x[:, 1:].clone().sum(),
           F.max_pool2d(x, 2).sum(), F.avg_pool2d(x, 2).sum(), F.pad(x, (1, 1)).sum(),
           F.interpolate(x, scale_factor=2).sum(), F.layer_norm(x, (16, 16)).sum(),
           F.group_norm(x, 2).sum(), F.dropout(x, 0.5).sum(), x.where(x > 0, x * 2).sum()]
for layer in (nn.Conv2d(4, 8, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2), nn.Linear(16, 4)):
    losses.append(layer.cuda()(x).sum())
torch.stack([l.float() for l in losses]).sum().backward()
print(len(losses), x.grad.sum().item())
torch.cuda.synchronize()
time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def run(build_dir, tmp_path_factory):
    import os

    directory = tmp_path_factory.mktemp("symbols")
    (directory / "many.py").write_text(MANY)
    environment = {k: v for k, v in os.environ.items()
                   if not k.startswith("GPUBUSY_") and k != "LD_PRELOAD"}
    run = Run(build_dir, environment, directory, ["--step", "none", "--native-stacks", "1"],
              [sys.executable, directory / "many.py"])
    assert run.result.returncode == 0, run.result.stderr
    return run


class Module:
    """Functions of a file, as readelf reads them."""

    def __init__(self, path):
        text = subprocess.run(["readelf", "-sW", path], capture_output=True, text=True).stdout
        self.at = {}
        for line in text.splitlines():
            fields = line.split()
            if len(fields) < 8 or fields[3] not in ("FUNC", "IFUNC") or fields[6] == "UND":
                continue
            value, size = int(fields[1], 16), int(fields[2], 0)
            if size:
                self.at.setdefault(value, []).append((size, fields[7].split("@")[0]))
        self.starts = sorted(self.at)

    def names(self, address):
        """Of the innermost function that holds the address."""
        at = bisect.bisect_right(self.starts, address)
        for start in reversed(self.starts[max(0, at - 50):at]):
            names = {name for size, name in self.at[start] if address < start + size}
            if names:
                return names
        return set()


@functools.cache
def module_of(path):
    return Module(path)


def kept_names(run):
    """(path, offset, linkage name, function) of every address that has a name."""
    (kept,) = run.out.glob("*.symbols")
    path = None
    for line in kept.read_text().splitlines():
        if line.startswith("module "):
            path = line.split(" ", 2)[2]
        elif path:
            offset, flags, _, _, linkage, function = line.split("\t")
            if "i" not in flags:
                yield path, int(offset, 16), linkage, function


def test_names_of_libtorch_are_those_of_readelf(run):
    checked, wrong = 0, []
    for path, offset, linkage, _ in kept_names(run):
        if "/torch/lib/" not in path:
            continue
        module = module_of(path)
        checked += 1
        if linkage not in module.names(offset - 1):
            wrong.append((path, hex(offset), linkage, module.names(offset - 1)))
    assert checked > 1000
    assert not wrong, (len(wrong), checked, wrong[:5])


def test_what_has_no_name_has_none_in_readelf_either(run):
    stacks = {e["args"]["Native stack"] for e in run.trace["traceEvents"]
              if "Native stack" in e.get("args", {})}
    frames = {frame for stack in stacks for frame in stack.split(";")}
    paths = {path.rsplit("/", 1)[1]: path for path, *_ in kept_names(run)}
    assert len(frames) > 1000
    assert any("at::native::" in frame for frame in frames)
    unnamed = {m.groups() for m in map(re.compile(r"(.+)\+0x([0-9a-f]+)$").match, frames) if m}
    for name, offset in unnamed:
        if name in paths:
            assert not module_of(paths[name]).names(int(offset, 16) - 1), (name, offset)
    assert len(unnamed) < len(frames) / 50
