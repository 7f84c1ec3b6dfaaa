# SPDX-License-Identifier: Apache-2.0
"""Runs inside the interpreter under test: merged.py PROBE CASE. Whole stacks against three truths:
sys._getframe for the Python frames and lines, glibc's backtrace() for the native frames, and the
symbol of the interpreter's eval function for where the one stands in the other. Must work from
Python 3.8 on."""
import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import re
import sys
import threading
import weakref

P = ctypes.PyDLL(sys.argv[1])  # calls with the GIL held
C = ctypes.CDLL(sys.argv[1])   # calls with the GIL released
for lib in (P, C):
    lib.gbm_unplaced.restype = ctypes.c_uint64
EVAL = "_PyEval_EvalFrameDefault"
ONE_EACH = sys.version_info < (3, 11)  # each Python frame has an eval call of its own
checks = 0
lock = threading.Lock()
BUFFER = ctypes.create_string_buffer(1 << 22)
TRUTH = (ctypes.c_uint64 * 1024)()


def expected(frame):
    out = []
    while frame is not None:
        code = frame.f_code
        out.append((code.co_filename, getattr(code, "co_qualname", code.co_name), frame.f_lineno))
        frame = frame.f_back
    return out


def rows(node):
    """(file, name, line) of a Python frame, ("@address", symbol, 0) of a native one."""
    n = P.gb_describe(node, BUFFER, len(BUFFER))
    out, cut = [], False
    for row in BUFFER.raw[:n].split(b"\x1e")[:-1]:
        f = row.split(b"\x1f")
        out.append((os.fsdecode(f[0]), f[1].decode("utf-8", "surrogatepass"), int(f[2])))
        cut = f[4] != b"0"
    return out, cut


def is_native(row):
    return row[0].startswith("@")


def same(got, want, what):
    if got != want:
        for i, (g, w) in enumerate(zip(got, want)):
            if g != w:
                raise SystemExit("%s: frame %d: got %r, want %r" % (what, i, g, w))
        raise SystemExit("%s: got %d frames, want %d" % (what, len(got), len(want)))


def groups_of(stack):
    """For each eval frame, innermost first, the Python frames that it runs."""
    out, group = [], []
    for row in stack:
        if not is_native(row):
            group.append(row)
        elif row[1] == EVAL or (group and row[1] == ""):  # "": a part without a symbol (.cold)
            out.append(group)
            group = []
        elif group:
            raise SystemExit("Python frames before %r: %r" % (row, group))
    if group:
        raise SystemExit("Python frames with no eval frame: %r" % (group,))
    return out


def check_one(library, what, node, want, bare_inside=0, bare_outside=0, cut=False):
    """`bare_…`: how many eval frames further in and out belong to another interpreter's chain."""
    global checks
    python = library.gbm_python()
    count = library.gbm_truth(TRUTH, len(TRUTH))
    with lock:
        truth = list(TRUTH[:count])
        stack, was_cut = rows(node)
        alone, _ = rows(python)
    natives = [int(r[0][1:]) for r in stack if is_native(r)]
    pythons = [r for r in stack if not is_native(r)]
    if cut:
        truth = truth[:len(natives)]
    same(natives[1:], truth[1:], what + ", native")
    assert was_cut == cut, (what, was_cut)
    same(pythons, alone, what + ", alone")
    if want is not None:
        same(pythons, want, what + ", Python")
    groups = groups_of(stack)
    inner, outer = groups[:bare_inside], groups[len(groups) - bare_outside:]
    assert not any(inner) and not any(outer), (what, [len(g) for g in groups])
    middle = groups[bare_inside:len(groups) - bare_outside]
    assert all(middle), (what, [len(g) for g in groups])
    if ONE_EACH:
        assert all(len(g) == 1 for g in middle), (what, [len(g) for g in groups])
    checks += 1
    return groups


def check(what="", libraries=(P, C), **more):
    """The caller's whole stack, with and without the GIL, twice: from the memory of the last one."""
    groups = None
    for library in libraries:
        for _ in range(2):
            node = library.gbm_capture(); want = expected(sys._getframe())  # on one line
            groups = check_one(library, what, node, want, **more)
    check.groups = groups
    return 0


def recurse(n, then):
    if n > 0:
        return recurse(n - 1, then)
    return then()


def recurse_by_c(n, then):
    """Through C functions that call back."""
    if n == 0:
        return then()
    if n % 3 == 0:
        return list(map(lambda _: recurse_by_c(n - 1, then), [0]))[0]
    if n % 3 == 1:
        return functools.partial(recurse_by_c, n - 1, then)()
    return functools.reduce(lambda a, b: recurse_by_c(n - 1, then), [1, 2])


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int)


def deep(depth, then, library=C):
    """`depth` frames of C++ and a Python callback behind them."""
    failure = []

    def guarded():
        try:
            return then() or 0
        except BaseException as e:  # ctypes would print it and go on
            failure.append(e)
            return 0
    result = library.gbm_deep(depth, CALLBACK(guarded))
    if failure:
        raise failure[0]
    return result


def case_depths():
    for depth in (5, 50, 200):
        recurse(depth, lambda: check("Python %d" % depth))
        if not ONE_EACH:
            assert len(check.groups[0]) >= depth, "plain calls share an eval call"
    for depth in (5, 50, 60):
        recurse_by_c(depth, lambda: check("mixed %d" % depth))
    for depth in (5, 50, 200):
        for library in (P, C):
            deep(depth, lambda: check("C++ %d" % depth), library)

    def both(n):
        if n == 0:
            return check("both")
        return deep(n, lambda: recurse(n, lambda: both(n - 1)), C if n % 2 else P)
    both(7)
    for depth in (5, 50, 200, 50, 5, 51):
        # Directly under C++: the innermost frames are native.
        deep_capture(depth)


def deep_capture(depth):
    nodes = []

    def then():
        node = C.gbm_capture(); want = expected(sys._getframe())
        nodes.append(check_one(C, "under C++", node, want))
    deep(depth, then)
    capture = ctypes.cast(C.gbm_capture, CALLBACK)  # no Python in between
    node = C.gbm_deep(depth, capture); want = expected(sys._getframe())
    check_one(C, "C++ alone", node & 0xffffffff, want)


def case_slots():
    """Everything that calls Python code from C."""
    sorted([3, 1, 2], key=lambda x: check("key") + x)
    list(map(lambda _: check("map"), range(2)))
    list(filter(lambda _: check("filter"), range(2)))
    [check("list") for _ in range(2)]
    {i: check("dict") for i in range(2)}
    {check("set") for _ in range(2)}
    functools.reduce(lambda a, b: check("reduce"), [1, 2, 3])
    functools.partial(check, "partial")()
    functools.partial(functools.partial(lambda: check("partial 2")))()
    re.sub("a", lambda m: str(check("re")), "aa")
    json.loads("[{}, {}]", object_hook=lambda d: check("json"))
    min([1, 2], key=lambda x: check("min"))
    max(check("max") for _ in range(2))

    class Meta(type):
        def __new__(mcs, *a):
            check("meta new")
            return super().__new__(mcs, *a)

        def __call__(cls, *a):
            check("meta call")
            return super().__call__(*a)

        def __instancecheck__(cls, o):
            check("instancecheck")
            return True

        def __getattr__(cls, name):
            check("meta getattr")
            return 1

    class Descriptor:
        def __get__(self, o, t):
            check("get")
            return 1

        def __set__(self, o, v):
            check("set")

        def __set_name__(self, owner, name):
            check("set name")

    class Base:
        def __init_subclass__(cls):
            check("init subclass")

    class Thing(Base, metaclass=Meta):
        here = check("class body")
        slot = Descriptor()

        class Inner:
            there = check("inner class")

        def __new__(cls, *a):
            check("new")
            return super().__new__(cls)

        def __init__(self, *a):
            check("init")

        def __getattr__(self, name):
            check("getattr")
            return 1

        def __setattr__(self, name, value):
            check("setattr")
            object.__setattr__(self, name, value)

        @property
        def prop(self):
            return check("property")

        @functools.lru_cache(None)
        def cached(self):
            return check("cached")

        @classmethod
        def of_class(cls):
            return check("classmethod")

        def __call__(self): return check("call")
        def __len__(self): return check("len") + 1
        def __bool__(self): return not check("bool")
        def __iter__(self): yield check("iter")
        def __getitem__(self, i): return check("getitem")
        def __setitem__(self, i, v): check("setitem")
        def __contains__(self, o): return bool(check("contains"))
        def __add__(self, o): return check("add")
        def __radd__(self, o): return check("radd")
        def __matmul__(self, o): return check("matmul")
        def __imatmul__(self, o): return check("imatmul") or self
        def __ilshift__(self, o): return check("ilshift") or self
        def __neg__(self): return check("neg")
        def __invert__(self): return check("invert")
        def __eq__(self, o): return check("eq") == 0
        def __lt__(self, o): return check("lt") == 0
        def __hash__(self): return check("hash")
        def __repr__(self): return str(check("repr"))
        def __format__(self, s): return str(check("format"))
        def __index__(self): return check("index")
        def __enter__(self): check("enter")
        def __exit__(self, *_): check("exit")
        def __delitem__(self, i): check("delitem")
        def __delattr__(self, n): check("delattr")
        def __del__(self): check("del")
        def __reduce__(self): return check("reduce") or "x"
    t = Thing(1)
    t.missing, t.slot, t.prop, t.cached(), t.of_class(), t(), Thing.absent
    t.slot = 2
    t.other = 3
    len(t), bool(t), list(t), t[0], 1 in t, t + 1, 1 + t, t @ t, -t, ~t, t == 1, hash(t), repr(t)
    t[1] = 2
    t @= 1
    t <<= 1
    del t[1], t.foo
    f"{t} {t!r}", "%s" % t, "{}".format(t), [1, 2, 3][t], sorted([t, t]), isinstance(1, Thing)
    if not t:
        raise AssertionError
    with t:
        check("with")
    del t
    gc.collect()

    class Cycle:
        def __del__(self):
            check("gc")
    c = Cycle()
    c.me = c
    del c
    gc.collect()
    w = Cycle()
    ref = weakref.ref(w, lambda _: check("weakref"))
    del w
    assert ref() is None

    def decorator(f):
        check("decorating")

        @functools.wraps(f)
        def wrapped(*a, **k):
            check("in wrapper")
            return f(*a, **k)
        return wrapped

    @decorator
    @functools.lru_cache(None)
    def decorated(a, b=2):
        return check("decorated")
    decorated(1)

    @contextlib.contextmanager
    def managed():
        check("before")
        yield check("yielded")
        check("after")
    with managed():
        check("inside")
    exec("check('exec')\ndef f():\n  check('of exec')\n\nf()", {"check": check})
    eval("check('eval')", {"check": check})
    eval("[f() for f in [lambda: check('lambda of eval')]]", {"check": check})
    try:
        try:
            raise ValueError
        except ValueError:
            check("except")
            raise KeyError
        finally:
            check("finally")
    except KeyError:
        check("outer")
    free = 5

    def closure():
        nonlocal free
        free += check("closure")
        return (lambda: free + check("cell"))()
    closure()
    depth = []

    def trace(frame, event, arg):
        # Before 3.11 a frame that is about to start has no line yet.
        if not depth and not (ONE_EACH and event == "call"):
            depth.append(1)
            # What runs the trace function is the traced frame's eval call.
            node = P.gbm_capture(); want = expected(sys._getframe())
            check_one(P, "trace", node, want)
            depth.pop()
        return trace

    def traced(n):
        return traced(n - 1) if n else 0
    sys.settrace(trace)
    traced(2)
    sys.settrace(None)
    sys.setprofile(lambda *a: trace(*a) and None)
    traced(2)
    sys.setprofile(None)
    sys.modules.pop("this_is_not", None)

    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "this_is_not":
                check("import")
    sys.meta_path.insert(0, Finder())
    with contextlib.suppress(ImportError):
        import this_is_not  # noqa: F401
    sys.meta_path.pop(0)
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
        lambda a, b: check("qsort"))
    numbers = (ctypes.c_int * 4)(3, 2, 1, 0)
    ctypes.CDLL(None).qsort(numbers, 4, 4, compare)


def case_generators():
    def inner(n):
        for i in range(n):
            check("generator")
            yield i

    def outer(n):
        yield from inner(n)
        yield from (check("expression") for _ in range(n))

    assert sum(1 for _ in outer(3)) == 6
    list(outer(2))
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
        recurse_by_c(i * 3, lambda: r.send(i))
    with contextlib.suppress(ValueError):
        r.throw(ValueError)

    def catching():
        try:
            yield
        except ValueError:
            check("thrown into")
        finally:
            check("closing")
    c = catching()
    next(c)
    with contextlib.suppress(StopIteration):
        c.throw(ValueError)
    c = catching()
    next(c)
    c.close()
    c = catching()
    next(c)
    del c

    def chain(n):
        if n == 0:
            yield check("chain")
        else:
            yield from chain(n - 1)
    list(chain(30))

    class Iterator:
        def __iter__(self):
            return self

        def __next__(self):
            check("next")
            raise StopIteration
    for _ in Iterator():
        pass

    def delegating():
        yield from Iterator()
    list(delegating())


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

    class Awaitable:
        def __await__(self):
            check("await")
            return iter(())

    async def chain(n):
        return check("chain") if n == 0 else await chain(n - 1)

    async def main():
        async with Manager():
            await asyncio.gather(*[leaf(i) for i in range(5)])
        async for _ in agen():
            check("async for")
        assert [x async for x in agen() if not check("comprehension")] == [0, 1]
        await Awaitable()
        await chain(20)
        loop = asyncio.get_running_loop()
        loop.call_soon(check, "call soon")
        await asyncio.wait_for(asyncio.ensure_future(leaf(1)), 5)
        task = asyncio.ensure_future(leaf(2))
        task.add_done_callback(lambda _: check("done"))
        await task
        await asyncio.sleep(0)
        await loop.run_in_executor(None, check, "executor")

    asyncio.run(main())


def case_threads():
    errors = []
    one = threading.Lock()

    def work(k):
        try:
            for i in range(20):
                # TRUTH and BUFFER are shared, captures are not.
                node = C.gbm_capture(); want = expected(sys._getframe())
                with one:
                    check_one(C, "thread", node, want)

                def then():
                    node = C.gbm_capture(); want = expected(sys._getframe())
                    with one:
                        check_one(C, "in thread", node, want)
                recurse((i + k) % 7, then)
                recurse_by_c((i + k) % 5, then)
                if i % 4 == 0:
                    deep(i, then)
        except BaseException as e:  # SystemExit too
            errors.append(e)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    # A thread that Python did not make calls back.
    deep(3, lambda: check("main"))


def case_interpreters():
    try:
        import _interpreters as interpreters  # 3.13
    except ImportError:
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            print("skipped: no subinterpreters")
            return
    chain = expected(sys._getframe())
    code = """
import sys
sys.argv = %r
namespace = {"__name__": "sub"}
exec(compile(open(%r).read(), %r, "exec"), namespace)
namespace["in_subinterpreter"](%d)
""" % (sys.argv, __file__, __file__, len(chain))
    for _ in range(2):
        one = (interpreters.create("legacy") if sys.version_info >= (3, 13) else
               interpreters.create(isolated=False) if sys.version_info >= (3, 9) else
               interpreters.create())
        error = interpreters.run_string(one, code)
        assert error is None, getattr(error, "formatted", error)
        check("outside")
        interpreters.destroy(one)
    check("after")


def in_subinterpreter(outside):
    for library in (P, C):
        P.gbm_forget_unplaced()
        node = library.gbm_capture(); want = expected(sys._getframe())
        python = library.gbm_python()
        stack, _ = rows(node)
        groups = [len(g) for g in groups_of(stack)]
        if sys.version_info >= (3, 12):
            # Python tells this interpreter's frames. The outer ones have no frames to tell.
            assert groups[0] == len(want) and not any(groups[1:]), groups
            check_one(library, "sub", node, want, bare_outside=len(groups) - 1)
        elif sys.version_info >= (3, 10):
            # It tells the frames of the interpreter outside: they stand where they belong.
            inner = next(i for i, n in enumerate(groups) if n)
            assert inner > 0 and sum(groups) == outside, groups
            check_one(library, "sub", node, None, bare_inside=inner)
        else:
            assert python != 0 and not any(groups), groups
            assert P.gbm_unplaced() == 1


def case_greenlets():
    try:
        import greenlet
    except ImportError as e:
        print("skipped:", e)
        return
    seen = []

    def body(n):
        def here(what):
            for library in (P, C):
                P.gbm_forget_unplaced()
                node = library.gbm_capture(); want = expected(sys._getframe())
                if sys.version_info >= (3, 10):
                    groups = check_one(library, what, node, want, cut=True)
                    assert sum(map(len, groups)) == len(want)
                else:
                    assert P.gbm_unplaced() == 1
                    assert not any(groups_of(rows(node)[0]))
                seen.append(what)
        here("first")
        recurse(n, lambda: main.switch())
        here("second")
        recurse_by_c(n, lambda: main.switch())
        recurse(n, lambda: here("third"))
        return n

    main = greenlet.getcurrent()
    greenlets = [greenlet.greenlet(body) for _ in range(4)]
    # Each goes on from another depth than it began at: what was outside of it is no more.
    for depth in (20, 0, 7):
        for i, g in enumerate(greenlets):
            recurse(depth, lambda: g.switch(*([i] if depth == 20 else [])))
            check("main greenlet")
    assert len(seen) == 4 * 3 * 2


def case_embedded():
    """For embed.c: the whole stack ends in C."""
    case_depths()
    assert checks > 20


def main():
    P.gbm_start()
    assert P.gb_probe() == 1, P.gb_probe()
    P.gbm_capture()
    globals()["case_" + sys.argv[2]]()
    if not (sys.argv[2] in ("interpreters", "greenlets") and sys.version_info < (3, 10)):
        assert P.gbm_unplaced() == 0, P.gbm_unplaced()
    print("ok", checks)


if __name__ == "__main__":
    main()
