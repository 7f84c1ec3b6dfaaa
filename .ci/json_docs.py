#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/json.md's tables of keys, from docs/schema/: --write puts them there, --check compares.

Who adds a key to a document adds it to `properties` in its schema, with a description, and runs this
with --write: it also sets `required` (each key without "x-optional") and the schema's layout.
"""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "docs" / "schema"
DOCUMENTS = ("report", "tables", "whatif", "compare", "doctor")
BEGIN, END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"
WIDTH = 110


def objects(schema):
    """Every part of a schema that describes an object with named keys."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield schema
        for part in schema.values():
            yield from objects(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from objects(part)


def words(values, indent):
    lines = [""]
    for i, value in enumerate(values):
        word = json.dumps(value) + ("," if i + 1 < len(values) else "")
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH - len(indent):
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return "[\n" + "".join(f"{indent}  {line}\n" for line in lines) + indent + "]"


def layout(value, depth=0):
    """JSON with a key that is a leaf on one line."""
    indent = "  " * depth
    line = json.dumps(value, ensure_ascii=False)
    holds_objects = '"properties"' in line or '"$defs"' in line
    if not isinstance(value, (dict, list)) or (not holds_objects and len(indent + line) <= WIDTH):
        return line
    if isinstance(value, list):
        if not any(isinstance(part, (dict, list)) for part in value):
            return words(value, indent)
        inner = [layout(part, depth + 1) for part in value]
        return "[\n" + ",\n".join(f"{indent}  {part}" for part in inner) + f"\n{indent}]"
    if not holds_objects and "enum" not in line and len(line) < 300:
        return line
    inner = [f"{json.dumps(key)}: {layout(part, depth + 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(f"{indent}  {part}" for part in inner) + f"\n{indent}}}"


def settled(schema):
    for part in objects(schema):
        part["required"] = [
            key for key, of in part["properties"].items() if not of.get("x-optional")]
    return layout(schema) + "\n"


def cell(text):
    return text.replace("|", "\\|")


def type_of(schema):
    """(type, may be null, the object with keys that it is or holds, or None)"""
    if "anyOf" in schema:
        kind, _, inner = type_of(schema["anyOf"][0])
        return kind, True, inner
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name})", False, None
    if "const" in schema:
        return f"{schema['const']}", False, None
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    null, kind = "null" in types, types[0]
    if kind == "array":
        of, _, inner = type_of(schema["items"])
        return f"list of {of}", null, inner
    return kind, null, schema if "properties" in schema else None


def rows(schema, prefix=""):
    for key, of in schema["properties"].items():
        kind, null, inner = type_of(of)
        unit = of.get("x-unit", "")
        if "anyOf" in of:
            unit = unit or of["anyOf"][0].get("x-unit", "")
        text = of["description"]
        if of.get("x-optional"):
            text += " May be missing."
        if "enum" in of:
            text += " One of " + ", ".join(f"`{v}`" for v in of["enum"] if v is not None) + "."
        yield (f"`{prefix}{key}`", kind + (" or null" if null else ""), unit, text)
        if inner is not None:
            yield from rows(inner, f"{prefix}{key}{'[]' if kind.startswith('list') else ''}.")


def table(schema):
    out = "| key | type | unit | meaning |\n|---|---|---|---|\n"
    return out + "".join("| " + " | ".join(cell(c) for c in row) + " |\n" for row in rows(schema))


def tables():
    out = ""
    for name in DOCUMENTS:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
        out += f"\n## {schema['title']}\n\n{schema['description']}\n"
        out += f"[schema/{name}.schema.json](schema/{name}.schema.json)\n\n{table(schema)}"
        for part, of in schema.get("$defs", {}).items():
            out += f"\n### {part}\n\n{of['description']}\n\n{table(of)}"
    return out + "\n"


def main():
    write = sys.argv[1:] == ["--write"]
    page = ROOT / "docs" / "json.md"
    wrong = []
    for name in DOCUMENTS:
        path = SCHEMAS / f"{name}.schema.json"
        text = path.read_text(encoding="utf-8")
        new = settled(json.loads(text))
        if write:
            path.write_text(new, encoding="utf-8")
        elif new != text:
            wrong.append(f"docs/schema/{path.name}")
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    new = head + BEGIN + tables() + END + rest.split(END, 1)[1]
    if write:
        page.write_text(new, encoding="utf-8")
    elif new != text:
        wrong.append("docs/json.md")
    if wrong:
        sys.exit(f"not as of the schemas: {', '.join(wrong)}: python3 .ci/json_docs.py --write")


if __name__ == "__main__":
    main()
