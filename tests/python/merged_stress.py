# SPDX-License-Identifier: Apache-2.0
"""merged_stress.py PROBE LIBRARIES CAPTURES: whole stacks (native and Python frames) from threads with
changing stacks, exceptions, generators, forks, signal handlers in the middle of everything, and libraries
that come and go. Nothing may crash or hang, memory must not grow, no frame may be left unplaced. Must work
from Python 3.8 on."""
import ctypes
import functools
import os
import random
import sys
import threading

P, C = ctypes.PyDLL(sys.argv[1]), ctypes.CDLL(sys.argv[1])
wanted = int(sys.argv[3])
NAMES = ("captures", "in handlers", "cut", "cut by another's dlclose", "wrong", "thrown", "loads",
         "Python frames", "native alone", "nodes", "refused")
RAW = (ctypes.c_uint64 * len(NAMES))()
lock = threading.Lock()


def counts():
    with lock:
        C.gbs_counts(RAW)
        return dict(zip(NAMES, RAW))


def resident_kib():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4


def leaf(choice):
    # Few kinds: the tree of stacks has an end.
    (C, P)[choice.randrange(2)].gbs_captures(choice.choice((0, 3, 12)), choice.choice((1, 6, 50)))
    if choice.random() < 0.05:
        raise KeyError(choice)


def by_generator(depth, choice):
    yield from [wander(depth, choice)]


def wander(depth, choice):
    if depth == 0:
        return leaf(choice)
    kind = choice.randrange(6)
    if kind == 0:
        return list(map(lambda d: wander(d, choice), [depth - 1]))
    if kind == 1:
        return functools.partial(wander, depth - 1)(choice)
    if kind == 2:
        return list(by_generator(depth - 1, choice))
    if kind == 3:
        try:
            return wander(depth - 1, choice)
        finally:
            C.gbs_captures(0, 1)
    if kind == 4:
        return sorted([depth - 1], key=lambda d: wander(d, choice) or 0)
    return wander(depth - 1, choice)


def work(place):
    """Threads end and begin: a new one gets the stack of an old one."""
    C.gbs_target(place)
    choice = random.Random(place)
    try:
        for _ in range(300):
            try:
                wander(choice.choice((1, 3, 5)), choice)
            except KeyError:
                C.gbs_captures(1, 2)
    except BaseException:
        failures.append(sys.exc_info())
        raise
    finally:
        C.gbs_target(-1 - place)


def keep_working(place):
    while not failures and not enough:
        t = threading.Thread(target=work, args=(place,))
        t.start()
        t.join()


def fork_once():
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            C.gbs_in_child()
            choice = random.Random(5)
            for _ in range(20):
                try:
                    wander(3, choice)
                except KeyError:
                    pass
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


failures, enough = [], []
assert P.gb_probe() == 1
sys.setswitchinterval(1e-4)
# 3.11 and 3.12 show a frame before they have stored it (for a few instructions of each eval call).
C.gbs_start(sys.argv[2].encode(), int(sys.version_info[:2] not in ((3, 11), (3, 12))))
threads = [threading.Thread(target=keep_working, args=(i,)) for i in range(4)]
for t in threads:
    t.start()
early = forks = 0
chance = random.Random(1)
while counts()["captures"] < wanted and not failures:
    for _ in range(20):
        try:
            wander(4, chance)
        except KeyError:
            pass
    if forks * wanted < counts()["captures"] * min(wanted // 50000, 200):
        fork_once()
        forks += 1
    if not early and counts()["captures"] >= wanted // 10:
        early = resident_kib()
enough.append(1)
for t in threads:
    t.join()
C.gbs_stop()
late, c = resident_kib(), counts()
print(", ".join("%d %s" % (c[n], n) for n in NAMES), "; %d forks; resident %d KiB at a tenth, %d KiB at "
      "the end" % (forks, early, late))
assert not failures
assert c["wrong"] == 0 and c["cut"] == 0, c
assert c["Python frames"] > 3 * (c["captures"] - c["cut by another's dlclose"]) * 0.5
# Before 3.10 a stack that a dlclose() cuts has no place for Python frames.
assert c["native alone"] <= c["cut by another's dlclose"] + c["in handlers"], c
# The tree of stacks grows up to its cap: 2^20 nodes of 32 bytes, and what finds them.
assert late - early < 48 * 1024, (early, late)
print("ok", c["captures"])
