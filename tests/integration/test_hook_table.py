# SPDX-License-Identifier: Apache-2.0
"""The hook table against CUDA's public headers: a new header brings no silent gap."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HOOKS = ROOT / "preload" / "hooks"

# What a function's name says of it, where that concerns us.
CONCERNS = re.compile(
    r"Launch|Memcpy|Memset|Malloc|MemAlloc|MemCreate|MemRelease|MemFree|Free|HostAlloc|HostRegister"
    r"|HostUnregister|MemMap|MemUnmap|MemAddress|MemSetAccess|Prefetch|Discard|Decompress|MemPool"
    r"|ArrayCreate|Array3DCreate|ArrayDestroy|GraphMemTrim|MemHandle"
    r"|Synchronize|Wait|Signal|WriteValue|BatchMemOp|StreamQuery|EventQuery|EventRecord|RecordEvent"
    r"|HostFunc|AddCallback|AttachMem"
    r"|(Stream|Event|Ctx)(Create|Destroy)|CtxAttach|CtxDetach|PrimaryCtx(Retain|Release|Reset)"
    r"|DeviceReset|ThreadExit|InitDevice|^cuInit$"
    r"|Capture|GraphInstantiate|GraphUpload|GraphExecUpdate|GraphExecDestroy"
    r"|ModuleLoad|ModuleUnload|LibraryLoad|LibraryUnload|FuncLoad"
)

# Not in the table, and why. Patterns of whole names.
EXCEPTIONS = {
    # Nodes of a graph are work that a later launch of the graph does; its parts are not its calls.
    r"cu(da)?Graph\w*Node\w*": "edits a graph",
    r"cu(da)?Graph\w*SetParams\w*": "edits a graph",
    # Questions, settings and handles: nothing is allocated, copied or waited for.
    r"cu(da)?\w*Get(Handle|Access|Attribute\w*|DefaultMemPool|MemPool|IPCHandle|CaptureInfo)\w*": "asks",
    r"cu(da)?\w*Set(MemPool|Attribute|Access|GraphMemAttribute)": "sets (cuMemSetAccess is a row)",
    r"cu(da)?MemPool(Export|Import)\w+": "handles for other processes",
    r"cu(da)?IpcGetMemHandle": "a handle for other processes",
    r"cu(da)?StreamIsCapturing": "asks",
    r"cu(da)?StreamUpdateCaptureDependencies": "edits a capture",
    r"cu(da)?ThreadExchangeStreamCaptureMode": "sets",
    r"cuFuncGetModule|cuModuleGetLoadingMode": "asks",
    r"cuMemGetAddressRange|cuMemGetAllocationGranularity": "asks",
    # Their parameters changed with CUDA 13 under the same name, and do not fit into registers: the
    # call of the driver inside them is recorded instead.
    r"cudaMemcpyBatchAsync|cudaMemcpy3DBatchAsync": "seen in the driver",
    # A handle to memory that another allocation stands for.
    r"cu(da)?(Import|Destroy)External\w+|cu(da)?ExternalMemory\w+": "of other APIs (Vulkan, …)",
}
# Superseded before CUDA 11: cuMemAlloc for cuMemAlloc_v2 and so on.
OLDEST = 11000


def rows():
    found = {}
    for name in ("cuda_driver.def", "cuda_runtime.def"):
        for line in (HOOKS / name).read_text().splitlines():
            match = re.match(r"(?:HOOK|LAUNCH)\((\w+), (\w+)|OWN\((\w+)", line)
            if match:
                found[match.group(2) or match.group(3)] = match.group(1) or "P"
    return found


@pytest.fixture(scope="module")
def headers(build_dir):
    cache = (build_dir / "CMakeCache.txt").read_text()
    value = re.search(r"^GPUBUSY_CUDA_INCLUDE_DIRS:\w+=(.*)$", cache, re.M).group(1)
    text = {}
    for directory in filter(None, value.split(";")):
        for name in ("cuda.h", "cuda_runtime_api.h", "cudaTypedefs.h"):
            path = Path(directory) / name
            if name not in text and path.exists():
                text[name] = re.sub(r"/\*.*?\*/|//[^\n]*", " ", path.read_text(errors="replace"),
                                    flags=re.S)
    if "cuda.h" not in text:
        pytest.skip("no CUDA headers")
    return text


@pytest.fixture(scope="module")
def driver_versions(headers):
    """Base name -> versions at which its form changed, as cuGetProcAddress counts them."""
    found = defaultdict(set)
    pattern = r"\*PFN_(cu[A-Z]\w+?)_v(\d+)(_ptsz|_ptds)?\s*\)"
    for name, version, per_thread in re.findall(pattern, headers["cudaTypedefs.h"]):
        if not per_thread:
            found[name].add(int(version))
    return {name: sorted(versions) for name, versions in found.items()}


def declared(headers):
    driver = re.findall(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", headers["cuda.h"])
    driver += re.findall(r"#define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+_v\d+)\b", headers["cuda.h"])
    driver += re.findall(r"__CUDA_API_PT(?:SZ|DS)\((cu[A-Z]\w+)\)", headers["cuda.h"])
    runtime = re.findall(r"\bcudaError_t\s+CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(",
                         headers["cuda_runtime_api.h"])
    return {re.sub(r"_pt[sd][sz]$", "", name) for name in driver + runtime}


def split(name):
    match = re.fullmatch(r"(\w+?)(?:_v(\d+))?", name)
    return match.group(1), int(match.group(2) or 1)


def is_superseded(name, driver_versions):
    base, form = split(name)
    versions = driver_versions.get(base, [])
    return form < len(versions) and versions[form] <= OLDEST


def missing(names, table, driver_versions):
    return sorted(
        name for name in names
        if CONCERNS.search(name) and name not in table
        and not is_superseded(name, driver_versions)
        and not any(re.fullmatch(pattern, split(name)[0]) for pattern in EXCEPTIONS)
    )


def test_every_function_that_concerns_us_is_a_row(headers, driver_versions):
    names = declared(headers)
    assert len(names) > 600
    assert missing(names, rows(), driver_versions) == []


def test_every_form_that_the_driver_hands_out_is_a_row(driver_versions):
    """cuGetProcAddress knows forms that no header of today declares."""
    names = {
        base if form == 1 else f"{base}_v{form}"
        for base, versions in driver_versions.items()
        for form in range(1, len(versions) + 1)
    }
    assert missing(names, rows(), driver_versions) == []


def test_a_new_function_would_be_noticed(driver_versions):
    assert missing({"cuMemcpyQuicklyAsync", "cuLaunchKernel"}, rows(), driver_versions) == [
        "cuMemcpyQuicklyAsync"]


def test_no_exception_is_idle(headers, driver_versions):
    names = {split(name)[0] for name in declared(headers)} | set(driver_versions)
    idle = [p for p in EXCEPTIONS if not any(re.fullmatch(p, name) for name in names)]
    assert idle == []


def test_variants_for_the_per_thread_stream(headers):
    """A function with a _ptsz or _ptds variant has it in the table too."""
    kinds = {}
    for name in ("cuda.h", "cuda_runtime_api.h"):
        for kind, function in re.findall(r"__CUDA(?:RT)?_API_(PTSZ|PTDS)\((\w+)\)", headers[name]):
            kinds[function] = "Z" if kind == "PTSZ" else "D"
    wrong = {
        name: (variants, kinds.get(name))
        for name, variants in rows().items()
        if name in kinds and kinds[name] not in variants
    }
    assert wrong == {}


def test_versions_of_the_driver_functions(driver_versions):
    """versions.def is what cudaTypedefs.h says."""
    listed = {
        name: (int(since), None if until == "kAny" else int(until))
        for name, since, until in re.findall(r"^VERSIONS\((\w+), (\d+), (\w+)\)",
                                             (HOOKS / "versions.def").read_text(), re.M)
    }
    expected = {}
    for name in rows():
        base, form = split(name)
        versions = driver_versions.get(base, [])
        if name.startswith("cuda") or len(versions) < 2 or form > len(versions):
            continue
        span = (0 if form == 1 else versions[form - 1],
                versions[form] if form < len(versions) else None)
        if span != ((0, None) if form == 1 else (3020, None) if form == 2 else None):
            expected[name] = span
    # From then on the name means cuGraphInstantiateWithFlags (cuda.h's macro, not its typedefs).
    expected["cuGraphInstantiate_v2"] = (11000, 12000)
    assert listed == expected


def parameters(text):
    """How many parameters a list of them has; `text` begins behind its opening bracket."""
    depth, commas, at = 1, 0, 0
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        commas += text[at] == "," and depth == 1
        at += 1
    return 0 if text[:at - 1].strip() in ("", "void") else commas + 1


# With more words than the function has, so that two forms of it fit (see the rows).
WIDER = {"cudaGraphInstantiate", "cudaGraphExecUpdate", "cudaMemPrefetchAsync"}


def test_undeclared_rows_have_the_functions_parameters(headers, driver_versions):
    """What the compiler cannot check, since no header declares the form under its exported name."""
    typed = defaultdict(set)
    for match in re.finditer(r"\*PFN_(cu[A-Z]\w+?)_v(\d+)(_ptsz|_ptds)?\s*\)\s*\(",
                             headers["cudaTypedefs.h"]):
        typed[match.group(1), int(match.group(2))].add(
            parameters(headers["cudaTypedefs.h"][match.end():]))
    declared_runtime = {
        match.group(1): parameters(headers["cuda_runtime_api.h"][match.end():])
        for match in re.finditer(r"\bcudaError_t\s+CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(",
                                 headers["cuda_runtime_api.h"])
    }
    checked, wrong = 0, {}
    for name in ("cuda_driver.def", "cuda_runtime.def"):
        for line in (HOOKS / name).read_text().splitlines():
            match = re.match(r"(?:HOOK\(Z?U, (\w+), \w+, \(|LAUNCH\(Z?U, (\w+), \()", line)
            if not match or (match.group(1) or match.group(2)) in WIDER:
                continue
            symbol = match.group(1) or match.group(2)
            mine = parameters(line[match.end():])
            base, form = split(symbol)
            versions = driver_versions.get(base, [])
            if symbol in declared_runtime:
                expected = {declared_runtime[symbol]}
            elif form <= len(versions):
                expected = typed[base, versions[form - 1]]
            else:
                continue  # gone from today's headers
            checked += 1
            if mine not in expected:
                wrong[symbol] = (mine, expected)
    assert wrong == {} and checked > 25
