#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes, from the CUDA and cuDNN headers, what a simulated library needs beyond its own code.

  stubs.c          a weak function for every function of the headers, which answers "not supported"
  symbols.map      the version script: each library's symbols under that library's version node
  entry_points.inc what cuGetProcAddress can answer: name, first version, variant, function
  errors.inc       the names of both APIs' errors
  link_NAME.c/.map the same names as an empty library to link programs against

Names come from the headers alone, so nothing of NVIDIA's binaries is needed to build.
"""

import argparse
import pathlib
import re
import sys

# Exported by libcudart but declared in no header of the wheels.
RUNTIME_EXTRA = {
    "__cudaRegisterFatBinary", "__cudaRegisterFatBinaryEnd", "__cudaUnregisterFatBinary",
    "__cudaRegisterFunction", "__cudaRegisterVar", "__cudaRegisterManagedVar",
    "__cudaRegisterHostVar", "__cudaRegisterUnifiedTable", "__cudaInitModule",
    "__cudaPushCallConfiguration", "__cudaPopCallConfiguration", "__cudaGetKernel",
    "__cudaLaunchKernel", "__cudaLaunchKernel_ptsz", "__cudaGetProcAddress", "cudaGetExportTable",
    "cudaProfilerStart", "cudaProfilerStop",
}


class Library:
    def __init__(self, name, node, headers, pattern, status, extra=()):
        self.name, self.node, self.headers = name, node, headers
        self.pattern, self.status, self.extra = pattern, status, set(extra)


LIBRARIES = [
    Library("cuda", None, ["cuda.h"],
            r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", "CUDA_ERROR_NOT_SUPPORTED",
            {"cuProfilerStart", "cuProfilerStop"}),
    Library("cudart", "libcudart.so.13", ["cuda_runtime_api.h"],
            r"\bcudaError_t\s+CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(", "cudaErrorNotSupported",
            RUNTIME_EXTRA),
    Library("cupti", "libcupti.so.13", ["cupti_version.h", "cupti_result.h", "cupti_callbacks.h",
                                        "cupti_activity.h", "cupti_events.h", "cupti_metrics.h",
                                        "cupti_pcsampling.h", "cupti_pmsampling.h",
                                        "cupti_profiler_target.h", "cupti_profiler_host.h",
                                        "cupti_range_profiler.h", "cupti_sass_metrics.h",
                                        "cupti_target.h"],
            r"\bCUptiResult\s+CUPTIAPI\s+(cupti\w+)\s*\(", "CUPTI_ERROR_NOT_SUPPORTED"),
    Library("cublasLt", "libcublasLt.so.13", ["cublasLt.h"],
            r"\bcublasStatus_t\s+CUBLASWINAPI\s+(cublasLt\w+)\s*\(", "CUBLAS_STATUS_NOT_SUPPORTED"),
    Library("cublas", "libcublas.so.13", ["cublas_api.h"],
            r"\bcublasStatus_t\s+CUBLASWINAPI\s+(cublas(?!Lt)\w+)\s*\(",
            "CUBLAS_STATUS_NOT_SUPPORTED"),
    Library("cudnn", "libcudnn.so.9", ["cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h",
                                       "cudnn_adv.h"],
            r"\bcudnnStatus_t\s+CUDNNWINAPI\s+(cudnn\w+)\s*\(", "CUDNN_STATUS_NOT_SUPPORTED"),
]
# Functions of newer CUPTIs that are exported elsewhere, so that they can be missing.
NEWER = set(re.findall(r"\bF\((cupti\w+),",
                       (pathlib.Path(__file__).parent / "../faces/cupti_v2.hpp").read_text()))
STATUS_VALUES = {
    "CUDA_ERROR_NOT_SUPPORTED": 801,
    "cudaErrorNotSupported": 801,
    "CUPTI_ERROR_NOT_SUPPORTED": 27,
    "CUBLAS_STATUS_NOT_SUPPORTED": 15,
    "CUDNN_STATUS_NOT_SUPPORTED": 3000,
}
# Functions that do not return a status, so have no stub, but are exported all the same.
NO_STATUS = {"cudart": ["cudaGetErrorName", "cudaGetErrorString", "cudaCreateChannelDesc"]}


def read_header(directories, name):
    for directory in directories:
        path = pathlib.Path(directory) / name
        if path.exists():
            text = path.read_text(errors="replace")
            # cudnn_ops.h only includes cudnn_ops_v9.h in some packages.
            for other in re.findall(r'#include "(cudnn_\w+_v9\.h)"', text):
                text += read_header(directories, other)
            return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)
    return ""


def per_thread_names(text):
    """Symbols that exist again for the per-thread default stream, from the headers' #defines."""
    pattern = r"__CUDA(?:RT)?_API_(PTDS|PTSZ)\((\w+)\)"
    return {f"{name}_{kind.lower()}" for kind, name in re.findall(pattern, text) if name != "api"}


def collect(library, directories):
    text = "".join(read_header(directories, header) for header in library.headers)
    if not text:
        return set()
    names = set(re.findall(library.pattern, text)) | library.extra
    names |= per_thread_names(text)
    # Declared under a name that a macro turns into the symbol's.
    names |= set(re.findall(r"#define\s+cu\w+\s+(cu\w+)\b", text))
    return {name for name in names - NEWER if not name.endswith("_internal")}


def write_stubs(path, libraries, names):
    with open(path, "w") as out:
        out.write("/* Generated by generate_stubs.py. */\n"
                  "int gpubusy_sim_unimplemented(const char* library, const char* name,\n"
                  "                              int status, char* seen);\n"
                  "#define STUB(library, name, status) \\\n"
                  "  __attribute__((weak, visibility(\"default\"))) int name(void) { \\\n"
                  "    static char seen; \\\n"
                  "    return gpubusy_sim_unimplemented(library, #name, status, &seen); }\n")
        for library in libraries:
            for name in sorted(names[library.name]):
                out.write(f'STUB("{library.name}", {name}, {STATUS_VALUES[library.status]})\n')


def write_map(path, libraries, names):
    with open(path, "w") as out:
        out.write("# Generated by generate_stubs.py. Programs want cudaMalloc@libcudart.so.13.\n")
        for library in libraries:
            listed = set(names[library.name]) | set(NO_STATUS.get(library.name, []))
            if library.node is None:
                # What newer libraries have under its own name (faces/cupti_v2_names.cpp).
                node, patterns = "GPUBUSY_SIM_DRIVER", ["nvml*", "gpubusy_sim_cupti*"]
            else:
                node, patterns = library.node, []
            if library.name in ("cublas", "cublasLt", "cudnn"):
                # The few functions that return no status.
                patterns += [f"{library.name}{verb}*" for verb in ("Get", "Logger", "LtGet")
                             if not (library.name == "cublasLt" and verb == "LtGet")]
            if library.name == "cudart":
                patterns += ["__cuda*"]
            out.write(f"{node} {{\n  global:\n")
            for name in sorted(listed) + patterns:
                out.write(f"    {name};\n")
            if library.node is None:
                out.write("  local: *;\n")
            out.write("};\n")


def entry_points(directories, exported):
    """(name, version, per_thread, symbol) from cudaTypedefs.h.

    The n-th version of a function is exported as name_vN, except that the first has no suffix.
    """
    text = "".join(read_header(directories, header)
                   for header in ("cudaTypedefs.h", "cudaProfilerTypedefs.h"))
    versions = {}
    for name, version, kind in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_pt[ds][sz])?\)", text):
        versions.setdefault(name, {}).setdefault(int(version), set()).add(kind)
    result = []
    # Since CUDA 12 the plain name means what cuda.h's macro makes of it.
    if "cuGraphInstantiateWithFlags" in exported:
        result.append(("cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"))
    for name, by_version in sorted(versions.items()):
        plain = sorted(v for v, kinds in by_version.items() if "" in kinds)
        symbols = [s for s in [name] + [f"{name}_v{i}" for i in range(2, 9)] if s in exported]
        if not symbols:
            continue
        # Missing leading versions are those whose declaration is gone from the headers.
        pairs = list(zip(reversed(plain), reversed(symbols)))
        for version, symbol in pairs:
            result.append((name, version, 0, symbol))
            for kind in ("_ptsz", "_ptds"):
                if symbol + kind in exported:
                    # A variant came with CUDA 7.0 at the earliest, or with its function.
                    result.append((name, max(version, 7000), 1, symbol + kind))
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--include", action="append", required=True)
    parser.add_argument("--output", required=True)
    arguments = parser.parse_args()
    names = {lib.name: collect(lib, arguments.include) for lib in LIBRARIES}
    for required in ("cuda", "cudart"):
        if not names[required]:
            sys.exit(f"generate_stubs.py: no header of {required} in {arguments.include}")
    out = pathlib.Path(arguments.output)
    out.mkdir(parents=True, exist_ok=True)
    write_stubs(out / "stubs.c", LIBRARIES, names)
    write_map(out / "symbols.map", LIBRARIES, names)
    with open(out / "entry_points.inc", "w") as file:
        file.write("// Generated by generate_stubs.py.\n")
        points = entry_points(arguments.include, names["cuda"])
        for name, version, per_thread, symbol in points:
            file.write(f'ENTRY_POINT("{name}", {version}, {per_thread}, {symbol})\n')
    with open(out / "errors.inc", "w") as file:
        file.write("// Generated by generate_stubs.py.\n")
        for macro, header, pattern in (
                ("DRIVER_ERROR", "cuda.h", r"^\s*(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)"),
                ("RUNTIME_ERROR", "driver_types.h", r"^\s*(cuda(?:Success|Error\w+))\s*=\s*(\d+)")):
            text = read_header(arguments.include, header)
            for name, code in re.findall(pattern, text, flags=re.M):
                file.write(f'{macro}("{name}", {code})\n')
    for library in LIBRARIES[:3]:
        with open(out / f"link_{library.name}.c", "w") as file:
            file.write("/* Generated by generate_stubs.py: only to link against. */\n")
            for name in sorted(names[library.name] | set(NO_STATUS.get(library.name, []))):
                file.write(f"int {name}(void) {{ return "
                           f"{STATUS_VALUES[library.status]}; }}\n")
        with open(out / f"link_{library.name}.map", "w") as file:
            node = library.node or ""
            file.write(f"{node} {{ global: cu*; __cuda*; local: *; }};\n")


if __name__ == "__main__":
    main()
