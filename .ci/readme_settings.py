#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's table of settings, from config/options.def: --write puts it there, --check compares."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- settings: begin -->\n", "<!-- settings: end -->"


def table():
    text = (ROOT / "config" / "options.def").read_text(encoding="utf-8")
    rows = re.findall(
        r'^OPTION\(\w+, "(\w+)", "([\w-]+)", (\w+), ("[^"]*"|\d+), (\d+), (\d+),\s*"([^"]*)"\)',
        text, re.M)
    assert len(rows) == text.count("\nOPTION("), "a row of options.def is written in another way"
    out = "| option | variable | value | default | meaning |\n|---|---|---|---|---|\n"
    for variable, flag, kind, default, least, most, meaning in rows:
        value = {
            "Text": "text",
            "Switch": "0/1, off/on, false/true, no/yes",
            "Count": f"{least} to {most}",
            "Size": f"{least} to {most} bytes; suffix K, M, G",
        }[kind]
        default = default.strip('"')
        if flag == "--output":
            flag, default = "-o, --output", "gpubusy-<UTC time>-<pid>"
        out += f"| `{flag}` | `{variable}` | {value} | {'`' + default + '`' if default else ''} | "
        out += meaning.replace("|", "\\|") + " |\n"
    return out


def main():
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    new = head + BEGIN + table() + END + rest.split(END, 1)[1]
    if sys.argv[1:] == ["--write"]:
        readme.write_text(new, encoding="utf-8")
    elif new != text:
        sys.exit("README.md: the table of settings is not that of config/options.def: ./dev fmt")


main()
