# SPDX-License-Identifier: Apache-2.0
"""A small training with all phases. With an argument torch.profiler watches it, and its trace goes
there."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.bn = nn.BatchNorm2d(8)
        self.fc = nn.Linear(8 * 30 * 30, 10)
        self.ln = nn.LayerNorm(10)

    def forward(self, x):
        x = F.dropout(F.relu(self.bn(self.conv(x))), 0.1)
        return Scale.apply(self.ln(self.fc(x.flatten(1))))


def evaluate(net, x):
    net.eval()
    with torch.no_grad():
        right = net(x).argmax(1).sum().item()
    net.train()
    return right


def main():
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))),
        batch_size=8,
    )
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    steps = 0
    for _ in range(4):
        for x, y in data:
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            steps += 1
            if steps % 5 == 0:
                evaluate(net, x)
        loss.item()


if len(sys.argv) > 1:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        main()
    profiler.export_chrome_trace(sys.argv[1])
else:
    main()

# On the simulated device PyTorch may abort where autograd's thread is not at rest yet.
time.sleep(0.5)
