# SPDX-License-Identifier: Apache-2.0
"""Runs inside the interpreter under test: inside.py PROBE CASE. Compares what our code reads from
the interpreter's memory with what sys._getframe says. Must work from Python 3.8 on."""
import asyncio
import ctypes
import functools
import os
import sys
import threading
import time

P = ctypes.PyDLL(sys.argv[1])  # calls with the GIL held
C = ctypes.CDLL(sys.argv[1])   # calls with the GIL released
STATES = ["none", "ready", "unknown", "free-threaded", "self-check"]
for lib in (P, C):
    lib.gb_text.restype = ctypes.c_char_p
    lib.gb_optimizer.restype = ctypes.c_uint64
    lib.gb_capture_optimizer.restype = ctypes.c_uint64
    lib.gb_bench.restype = ctypes.c_double
checks = 0


def qualified(code):
    return getattr(code, "co_qualname", code.co_name)


def expected(frame):
    out = []
    while frame is not None:
        code = frame.f_code
        out.append((code.co_filename, qualified(code), frame.f_lineno))
        frame = frame.f_back
    return out


BUFFER = ctypes.create_string_buffer(1 << 20)


def described(node):
    n = P.gb_describe(node, BUFFER, len(BUFFER))
    rows = BUFFER.raw[:n].split(b"\x1e")[:-1]
    out = []
    for row in rows:
        f = row.split(b"\x1f")
        out.append((os.fsdecode(f[0]), f[1].decode("utf-8", "surrogatepass"), int(f[2])))
    return out


def same(got, want, what):
    global checks
    checks += 1
    want = want[:256]
    if got != want:
        for g, w in zip(got, want):
            if g != w:
                raise SystemExit("%s: got %r, want %r" % (what, g, w))
        raise SystemExit("%s: got %d frames, want %d" % (what, len(got), len(want)))


def check(what="", lib=None):
    """Compares the caller's whole stack, both with and without the GIL."""
    for library in (P, C) if lib is None else (lib,):
        same(described(library.gb_capture()), expected(sys._getframe()), what)  # on one line
    return 0


def recurse(n, then):
    if n > 0:
        return recurse(n - 1, then)
    return then()


def case_recursion():
    for depth in (5, 10, 50, 100, 200, 240, 400):
        recurse(depth, lambda: check("depth %d" % depth))


def case_generators():
    def inner(n):
        for i in range(n):
            check("generator")
            yield i

    def outer(n):
        yield from inner(n)
        yield from (check("expression") for _ in range(n))

    assert sum(1 for _ in outer(3)) == 6
    g = inner(2)
    next(g)
    recurse(5, lambda: next(g))

    def receiver():
        got = 0
        while True:
            got = yield check("send") + got
    r = receiver()
    next(r)
    for i in range(3):
        r.send(i)
    try:
        r.throw(ValueError)
    except ValueError:
        check("after throw")


def case_asyncio():
    async def leaf(n):
        await asyncio.sleep(0)
        check("leaf")
        return n

    async def agen():
        for i in range(2):
            check("async generator")
            yield await leaf(i)

    class Manager:
        async def __aenter__(self):
            check("aenter")

        async def __aexit__(self, *_):
            check("aexit")

    async def main():
        async with Manager():
            await asyncio.gather(*[leaf(i) for i in range(5)])
        async for _ in agen():
            check("async for")
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, check, "executor")

    asyncio.run(main())


def case_threads():
    errors = []

    def work():
        try:
            for i in range(50):
                recurse(i % 20, lambda: check("thread"))
        except BaseException as e:  # SystemExit too
            errors.append(e)
    # BUFFER is shared: describe under the GIL only within one lock.
    global described
    plain, lock = described, threading.Lock()

    def locked(node):
        with lock:
            return plain(node)
    described = locked
    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    described = plain
    if errors:
        raise errors[0]


def case_race():
    """Eight threads capture without the GIL; their code objects come and go."""
    results = []

    def work(k):
        for i in range(200):
            space = {"C": C, "results": results, "sys": sys}
            exec(compile("def made_%d_%d():\n%s    n = C.gb_capture()\n    return n\n"
                         % (k, i, "\n" * (i % 7)), "<made>", "exec"), space)
            name = "made_%d_%d" % (k, i)
            results.append((space[name](), name, 2 + i % 7))
            if i % 50 == 0:
                recurse(i % 30, C.gb_capture)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for node, name, line in results:
        got = described(node)[0]
        same([got], [("<made>", name, line)], "race")


def case_shapes():
    sorted([3, 1, 2], key=lambda x: check("key") + x)
    list(map(lambda _: check("map"), range(2)))
    [check("comprehension") for _ in range(2)]
    {i: check("dict") for i in range(2)}
    {check("set") for _ in range(2)}
    functools.reduce(lambda a, b: a + b + check("reduce"), [1, 2, 3])

    class Body:
        here = check("class body")

        class Inner:
            there = check("inner class")

            @property
            def prop(self):
                return check("property")

            def __eq__(self, other):
                check("eq")
                return True

            def __del__(self):
                check("del")

            @staticmethod
            def static():
                check("static")
    inner = Body.Inner()
    inner.prop
    inner == inner
    [inner].index(Body.Inner())
    inner.static()
    del inner

    def decorator(f):
        check("decorating")

        @functools.wraps(f)
        def wrapped(*a, **k):
            check("in wrapper")
            return f(*a, **k)
        return wrapped

    @decorator
    @functools.lru_cache(None)
    def decorated(a,
                  b=2):
        return check(
            "several lines"
        ) + (
            check("further down"))
    decorated(1)
    x = [
        check("list line 1"),

        check("list line 3"),
    ]
    for i in range(3): check("one line"); check("twice")
    try:
        raise ValueError
    except ValueError:
        check("except")
    finally:
        check("finally")
    with open(os.devnull):
        check("with")
    eval("check('eval')", globals(), {"check": check})
    free = 5

    def closure():
        nonlocal free
        free += check("closure")

        def deeper():
            return free + check("cell")
        return deeper()
    closure()


def case_names():
    space = {"check": check}
    exec(compile("def größe(): return check('latin')\n"
                 "def 函数(): return check('bmp')\n"
                 "def 𝔣(): return check('astral')\n"
                 "größe(); 函数(); 𝔣()\n", "dätei-文-\U0001d51f.py", "exec"), space)
    exec(compile("check('bytes')", os.fsdecode(b"bad\xff\xfename.py"), "exec"), space)
    exec(compile("\n" * 100000 + "check('far')", "far.py", "exec"), space)
    exec(compile("def f():\n" + "    x = 1\n" * 3000 + "    check('long')\nf()", "long.py", "exec"),
         space)
    # Jumps forth and back in lines and a wide expression.
    exec(compile("y = [" + ",\n".join(["0"] * 500) + ",\ncheck('wide')]", "wide.py", "exec"), space)
    exec(compile("%s()" % "x" * 1, "s.py", "exec"), {"x": lambda: check("short")})
    exec(compile("", "", "exec"), space)
    exec(compile("check('no file')", "", "exec"), space)


def case_reuse():
    """3,000 functions made by exec share some hundred addresses."""
    addresses = set()
    for i in range(3000):
        space = {"P": P}
        exec("def fn_%d():\n%s return P.gb_capture()" % (i, "\n" * (i % 3)), space)
        node = space["fn_%d" % i]()
        addresses.add(id(space["fn_%d" % i].__code__))
        same(described(node)[:1], [("<string>", "fn_%d" % i, 2 + i % 3)], "reuse")
        del space
    assert len(addresses) < 2900, "no address was used again: the test shows nothing"
    print("addresses", len(addresses))
    # The same function again and again stays one code.
    counts = (ctypes.c_uint64 * 3)()
    P.gb_counts(counts)
    before = counts[1]
    for i in range(500):
        space = {"P": P}
        exec("def same(): return P.gb_capture()", space)
        space["same"]()
    P.gb_counts(counts)
    assert counts[1] - before <= 3, counts[1] - before


def case_offsets():
    codes = (ctypes.c_uint64 * 300)()
    offsets = (ctypes.c_int * 300)()
    entries = (ctypes.c_uint64 * 300)()

    def leaf():
        global checks
        for lib in (P, C):
            n = lib.gb_walk(codes, offsets, entries, 300); frame = sys._getframe()
            i = 0
            while frame is not None:
                assert codes[i] == id(frame.f_code), i
                if i > 0:
                    # 3.10 counts instructions inside, but shows bytes.
                    assert offsets[i] == frame.f_lasti, (i, offsets[i], frame.f_lasti)
                checks += 1
                frame = frame.f_back
                i += 1
            assert n == i, (n, i)
            if sys.version_info >= (3, 11):
                known = [e for e in entries[:n] if e]
                assert known == sorted(known) and known, "stack addresses rise outwards"
                assert entries[n - 1], "the outermost frame ends an eval call"
    recurse(20, leaf)
    recurse(3, lambda: sorted([1, 2], key=lambda x: leaf() or x))


def case_gil():
    """Who holds the GIL, found by the lock that another thread waits for."""
    global checks
    numbers, stop = [], []

    def wait():
        numbers.append((threading.get_native_id(), threading.get_ident()))
        time.sleep(0.01)  # gets the GIL back when the call below is over

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not numbers:
        time.sleep(0.001)
    found = P.gb_find_gil(numbers[0][0], ctypes.c_uint64(numbers[0][1]))
    waiter.join()
    assert found == 0, found

    def spin():
        numbers.append(threading.get_native_id())
        while not stop:
            pass

    spinner = threading.Thread(target=spin)
    spinner.start()
    code, offset, thread = ctypes.c_uint64(), ctypes.c_int(), ctypes.c_int()
    end = time.monotonic() + 60
    while checks < 50 and time.monotonic() < end:
        if C.gb_gil_holder(ctypes.byref(code), ctypes.byref(offset), ctypes.byref(thread)) == 0:
            continue  # not taken yet
        checks += 1
        assert thread.value == numbers[1]
        assert code.value == id(spin.__code__)
        assert 0 <= offset.value < len(spin.__code__.co_code), offset.value
    stop.append(1)
    spinner.join()
    assert checks == 50, checks


def case_fork():
    def child_part():
        C.gb_reset_after_fork()
        recurse(3, lambda: check("child"))
        counts = (ctypes.c_uint64 * 3)()
        P.gb_counts(counts)
        assert 0 < counts[0] < 100, list(counts)
    recurse(30, lambda: check("parent"))
    stop = []

    def busy():
        while not stop:
            recurse(20, C.gb_capture)
    threads = [threading.Thread(target=busy) for _ in range(3)]
    for t in threads:
        t.start()
    bad = 0
    for _ in range(20):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child_part()
                status = 0
            except BaseException as e:
                sys.stderr.write("child: %r\n" % (e,))
            os._exit(status)
        bad += os.waitpid(pid, 0)[1] != 0
    stop.append(1)
    for t in threads:
        t.join()
    assert bad == 0
    check("parent after")


def case_refusal():
    check("before")
    P.gb_reset()
    P.gb_refuse(1)
    assert P.gb_capture() == 0
    P.gb_refuse(0)
    check("after a refusal")
    counts = (ctypes.c_uint64 * 3)()
    P.gb_counts(counts)
    assert counts[2] > 0
    P.gb_reset()
    check("after a reset")


def case_foreign():
    assert P.gb_foreign() == 0
    assert C.gb_foreign() == 0
    assert P.gb_errno_kept() == 0
    assert C.gb_errno_kept() == 0


def case_exit():
    P.gb_check_at_exit()
    check("before the end")
    import atexit
    atexit.register(lambda: check("atexit"))

    class Last:
        def __del__(self, check=check):
            P.gb_capture()
    global last
    last = Last()


def case_daemon():
    """Daemon threads keep capturing while the interpreter ends."""
    def spin():
        while True:
            recurse(10, C.gb_capture)
    for _ in range(4):
        threading.Thread(target=spin, daemon=True).start()
    check("main")


def case_unknown():
    for minor in (7, 15, 99):
        P.gb_pretend(minor)
        assert STATES[P.gb_probe()] == "unknown", P.gb_probe()
        assert b"off" in P.gb_text()
        assert P.gb_capture() == 0 and P.gb_foreign() == 0
    # Another version's layout: the self-check has to notice, without a crash.
    mine = sys.version_info[1]
    families = [(8, 9, 10), (11,), (12,), (13,), (14,)]  # too much alike to tell them apart
    for minor in range(8, 15):
        if any(mine in f and minor in f for f in families):
            continue
        P.gb_pretend(minor)
        for _ in range(5):
            state = STATES[P.gb_probe()]
            assert state in ("self-check", "none"), (minor, state)
            assert P.gb_capture() == 0
        print("pretended", minor, state)
    P.gb_pretend(0)
    assert STATES[P.gb_probe()] == "ready"


def case_seccomp():
    """Without process_vm_readv (old container profiles) the self-check reads through a pipe."""
    import platform
    import struct
    number = {"x86_64": 310, "aarch64": 270}[platform.machine()]
    rules = [(0x20, 0, 0, 0),             # load the system call's number
             (0x15, 0, 1, number),        # equal?
             (0x06, 0, 0, 0x00050001),    # then EPERM
             (0x06, 0, 0, 0x7fff0000)]    # else allow
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *r) for r in rules))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
    if libc.prctl(22, 2, program, 0, 0) != 0:
        print("seccomp filters are not allowed here: not tested")
        return
    fds = len(os.listdir("/proc/self/fd"))
    P.gb_pretend(0)
    assert STATES[P.gb_probe()] == "ready"
    assert len(os.listdir("/proc/self/fd")) == fds
    check("after")
    for minor in (8, 11, 12):
        if minor != sys.version_info[1] and (minor > 10 or sys.version_info[1] > 10):
            P.gb_pretend(minor)
            for _ in range(5):
                assert STATES[P.gb_probe()] in ("self-check", "none")


def case_interpreters():
    """Inside a subinterpreter: whatever is found, nothing breaks."""
    try:
        import _interpreters as interpreters  # 3.13
    except ImportError:
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            return
    for _ in range(3):
        one = interpreters.create("legacy") if sys.version_info >= (3, 13) else (
            interpreters.create())
        interpreters.run_string(one, (
            "try:\n import ctypes\nexcept ImportError:\n ctypes = None\n"
            "def f(n):\n if n: return f(n - 1)\n"
            " if ctypes: ctypes.PyDLL(%r).gb_capture(); ctypes.CDLL(%r).gb_capture()\nf(20)\n"
            % (sys.argv[1], sys.argv[1])))
        check("outside")
        interpreters.destroy(one)
    check("after")


def case_optimizer():
    """A stand-in for torch: what counts are the wrapper's name and its file."""
    source = (
        "import functools\n"
        "def profile_hook_step(func):\n"
        "    @functools.wraps(func)\n"
        "    def wrapper(*args, **kwargs):\n"
        "        self, *_ = args\n"
        "        return func(*args, **kwargs)\n"
        "    return wrapper\n"
        "def zero_grad(f):\n"
        "    return f()\n")
    torch = {}
    exec(compile(source, "/x/site-packages/torch/optim/optimizer.py", "exec"), torch)
    sched = {}
    exec(compile(source, "/x/site-packages/torch/optim/lr_scheduler.py", "exec"), sched)
    other = {}
    exec(compile(source, "mytorch/optim/optimizer.py", "exec"), other)
    wide = {}
    exec(compile(source, "/文/torch/optim/optimizer.py", "exec"), wide)
    frame = ctypes.c_uint64()

    def ask():
        answers = set()
        for lib in (P, C):
            for call in (lib.gb_optimizer, lib.gb_capture_optimizer):
                answers.add((call(ctypes.byref(frame)), frame.value != 0))
        assert len(answers) == 1, answers
        return answers.pop()

    class Optimizer:
        def __init__(self, inner=None):
            self.inner = inner

        def step(self, closure=ask):
            return self.inner.step(closure) if self.inner else closure()
    plain = Optimizer.step
    for hook, counts in ((torch, True), (sched, False), (other, False), (wide, True)):
        Optimizer.step = hook["profile_hook_step"](plain)
        o = Optimizer()
        want = (id(o), True) if counts else (0, False)
        assert o.step() == want
        for depth in (3, 30, 60, 200):
            assert o.step(lambda: recurse(depth, ask)) == want, depth
        outer = Optimizer(o)
        assert outer.step() == ((id(outer), True) if counts else (0, False)), "the outermost counts"
        assert ask() == (0, False)
        assert o.step() == want
    assert torch["zero_grad"](ask) == (0, False)
    results = []
    t = threading.Thread(target=lambda: results.append(ask()))
    t.start()
    t.join()
    assert results == [(0, False)]


def case_lines():
    """Every instruction of every function of some modules of the standard library."""
    global checks
    import importlib
    import types
    truth = ctypes.pythonapi.PyCode_Addr2Line
    truth.argtypes = [ctypes.py_object, ctypes.c_int]
    seen = set()

    def visit(code):
        global checks
        if code in seen:
            return
        seen.add(code)
        table = code.co_linetable if sys.version_info >= (3, 10) else code.co_lnotab
        for offset in range(0, len(code.co_code), 2):
            want = truth(code, offset)
            got = P.gb_line(table, len(table), code.co_firstlineno, sys.version_info[1], offset)
            # A negative line: the instruction has none.
            assert got == (want if want >= 0 else code.co_firstlineno), (code, offset, got, want)
            checks += 1
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                visit(constant)
    for name in ("argparse", "asyncio.base_events", "decimal", "inspect", "pickle", "typing",
                 "unittest.case", "ctypes", "dataclasses", "ast", "tarfile"):
        module = importlib.import_module(name)
        with open(module.__file__, "rb") as f:
            visit(compile(f.read(), module.__file__, "exec"))


def case_bench():
    for depth in (10, 20, 50):
        # Two frames here are the module's and this one's.
        row = recurse(depth - 4, lambda: [
            (name, P.gb_bench(what, 400))
            for what, name in enumerate(("capture", "walk", "optimizer", "capture+optimizer"))])
        print("depth", depth, " ".join("%s %.0f ns" % r for r in row))


if __name__ == "__main__":
    assert STATES[P.gb_probe()] == "ready", (STATES[P.gb_probe()], P.gb_text())
    globals()["case_" + sys.argv[2]]()
    print("ok", checks)
