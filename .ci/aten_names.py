#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes analysis/stacks/aten_names.inc: how names in at::_ops end, from an installed PyTorch.

A struct of at::_ops is called as its operator and overload are, joined by "_". The file has the names
of overloads, and the operators whose end looks like one. `--check`: only says whether each operator of
this PyTorch is told right.
"""

import argparse
import sys
from pathlib import Path

import torch

PATH = Path(__file__).resolve().parents[1] / "analysis" / "stacks" / "aten_names.inc"


def schemas():
    """Struct name -> operator name."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            name, overload = schema.name[len("aten::"):], schema.overload_name
            found[f"{name}_{overload}" if overload else name] = name
    return found


def stripped(name, overloads, whole):
    """As aten_name() in analysis/stacks/operators.cpp."""
    if name in whole:
        return name
    starts = [name[:i] for i in range(1, len(name) - 1)
              if name[i] == "_" and name[i + 1:] in overloads]
    return next((s for s in starts if s in whole), starts[0] if starts else name)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = schemas()
    if arguments.check:
        lines = PATH.read_text().splitlines()
        take = lambda kind: {l[len(kind) + 1:-1] for l in lines if l.startswith(kind + "(")}
        overloads, whole = take("OVERLOAD"), take("WHOLE_NAME")
        wrong = sorted(n for n, op in found.items() if stripped(n, overloads, whole) != op)
        print(f"{len(found) - len(wrong)} of {len(found)} names are right")
        print(*wrong, sep="\n")
        return 1 if wrong else 0
    overloads = {n[len(op) + 1:] for n, op in found.items() if n != op}
    whole = set()
    for name, operator in found.items():
        if name == operator and stripped(name, overloads, set()) != operator:
            whole.add(name)
    clash = [n for n, op in found.items() if stripped(n, overloads, whole) != op]
    if clash:
        print("an overload of these cannot be told:", *clash, file=sys.stderr)
    text = "// SPDX-License-Identifier: Apache-2.0\n//\n"
    text += f"// Written by .ci/aten_names.py from PyTorch {torch.__version__.split('+')[0]}.\n"
    text += "".join(f"OVERLOAD({n})\n" for n in sorted(overloads))
    text += "".join(f"WHOLE_NAME({n})\n" for n in sorted(whole))
    PATH.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
