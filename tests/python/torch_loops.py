# SPDX-License-Identifier: Apache-2.0
"""Training loops whose steps must be counted exactly: torch_loops.py CASE... prints "CASE MADE".
Runs on any device that torch calls cuda; values do not matter."""
import sys
import threading
import warnings

import torch
from torch import nn, optim

warnings.filterwarnings("ignore")
DEVICE = "cuda"
INPUT = torch.randn(16, 64, device=DEVICE)


def model(layers=8):
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())
                           for _ in range(layers)]).to(DEVICE)


def loss(net):
    return net(INPUT).square().mean()


def loop(make, n=60, clip=False, scaler=False, skip=lambda i: False, accumulate=1, evaluate=0,
         scheduler=False, keep_grads=False):
    net = model()
    optimizer = make(net.parameters())
    schedule = optim.lr_scheduler.StepLR(optimizer, 10) if scheduler else None
    scale = torch.amp.GradScaler(DEVICE, enabled=scaler)
    made = 0
    for i in range(n):
        for _ in range(accumulate):
            with torch.autocast(DEVICE, enabled=scaler):
                value = loss(net)
            scale.scale(value).backward()
        if clip:
            scale.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if skip(i):
            if scaler and not clip:
                scale.unscale_(optimizer)  # then "inf" was found
        else:
            scale.step(optimizer)
            made += 1
        scale.update()
        if schedule:
            schedule.step()
        optimizer.zero_grad(set_to_none=not keep_grads)
        if evaluate and i % evaluate == evaluate - 1:
            with torch.no_grad():
                for _ in range(200):
                    net(INPUT)
    return made


def closure(n=20):
    net = model()
    optimizer = optim.LBFGS(net.parameters(), max_iter=3)

    def again():
        optimizer.zero_grad()
        value = loss(net)
        value.backward()
        return value
    for _ in range(n):
        optimizer.step(again)
        INPUT + 1
    return n


def gan(critic, n=60):
    d, g = model(4), model(4)
    of_d, of_g = optim.Adam(d.parameters()), optim.Adam(g.parameters())
    for i in range(n):
        of_d.zero_grad()
        (d(INPUT).mean() - d(g(INPUT).detach()).mean()).backward()
        of_d.step()
        if i % critic == critic - 1:
            of_g.zero_grad()
            d(g(INPUT)).mean().backward()
            of_g.step()
    return n


class Own(optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-0.1)


class OwnChild(Own):
    def step(self, closure=None):
        return super().step(closure)


def phases(n=40):
    net = model()
    makers = (optim.Adam, lambda p: optim.SGD(p, 0.1, foreach=False),
              lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=False),
              lambda p: optim.AdamW(p, fused=True))
    for make in makers:
        optimizer = make(net.parameters())
        for _ in range(n):
            loss(net).backward()
            optimizer.step()
            optimizer.zero_grad()
    return len(makers) * n


def in_backward(n=60):
    net = model()

    def attach(parameter):
        optimizer = optim.SGD([parameter], 0.1)

        def hook(_):
            optimizer.step()
            optimizer.zero_grad()
        parameter.register_post_accumulate_grad_hook(hook)
    for p in net.parameters():
        attach(p)
    for _ in range(n):
        loss(net).backward()
    return n


def in_another_thread(n=40):
    def work():
        loop(lambda p: optim.Adam(p), n)
    for _ in range(2):
        t = threading.Thread(target=work)
        t.start()
        t.join()
    return 2 * n


CASES = {
    "sgd_foreach": lambda: loop(lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=True)),
    "sgd_single": lambda: loop(lambda p: optim.SGD(p, 0.1, foreach=False)),
    "sgd_kept_grads": lambda: loop(lambda p: optim.SGD(p, 0.1, momentum=0.9, foreach=False),
                                   keep_grads=True),
    "adam_foreach": lambda: loop(lambda p: optim.Adam(p, foreach=True)),
    "adam_single": lambda: loop(lambda p: optim.Adam(p, foreach=False)),
    "adam_fused": lambda: loop(lambda p: optim.Adam(p, fused=True)),
    "clip_and_schedule": lambda: loop(optim.AdamW, clip=True, scheduler=True),
    "scaler": lambda: loop(lambda p: optim.SGD(p, 0.1), scaler=True),
    "scaler_skips": lambda: loop(lambda p: optim.Adam(p, foreach=False), scaler=True,
                                 skip=lambda i: i < 5 or i % 17 == 0),
    "accumulate": lambda: loop(lambda p: optim.SGD(p, 0.1, foreach=False), accumulate=8),
    "evaluate": lambda: loop(lambda p: optim.SGD(p, 0.1, foreach=False), evaluate=15),
    "closure": closure,
    "gan": lambda: gan(1),
    "critic": lambda: gan(5),
    "own": lambda: loop(Own),
    "own_child": lambda: loop(OwnChild),
    "phases": phases,
    "in_backward": in_backward,
    "in_another_thread": in_another_thread,
}

if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        print(case, CASES[case](), flush=True)
    torch.cuda.synchronize()
