# SPDX-License-Identifier: Apache-2.0
"""Holds what gpubusy prints as JSON against docs/schema/."""

import functools
import json
from pathlib import Path

import jsonschema

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schema"
COMMANDS = ("report", "compare", "whatif", "doctor")


@functools.cache
def validator(name):
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def problems(document, name):
    """Where the document is not as its schema says; empty: all is well."""
    return [f"{'.'.join(str(part) for part in error.absolute_path) or 'document'}: {error.message[:300]}"
            for error in validator(name).iter_errors(document)]


def check(document, name):
    found = problems(document, name)
    assert not found, (
        f"not as docs/schema/{name}.schema.json says (a new key is described there, then: "
        f"python3 .ci/json_docs.py --write):\n" + "\n".join(found[:10]))


def of_command(command, result, cwd=None):
    """(document, schema's name) that a finished command gave; None: no JSON of gpubusy's."""
    if isinstance(command, (str, bytes)):
        return None
    words = [str(word) for word in command]
    at = next((i for i, word in enumerate(words) if Path(word).name == "gpubusy"), None)
    if at is None:
        return None
    options = words[at + 1:]
    name = options[0] if options and options[0] in COMMANDS else None
    if name in (None, "doctor"):
        # Behind the options is the program, which may have a --json of its own.
        end = options.index("--") if "--" in options else len(options)
        options = options[:end] if name else options[:end if "--" in options else 0]
    if "--json" not in options:
        return None
    if name == "report" and "--by" in options:
        name = "tables"
    text = None if name is None else result.stdout
    if "--report" in options:
        file = Path(cwd or ".") / options[options.index("--report") + 1]
        text = file.read_bytes() if file.is_file() else None
    if not text:
        return None
    try:
        return json.loads(text), name or "report"
    except ValueError:
        assert result.returncode != 0, f"no JSON, and yet exit status 0: {text[:300]!r}"
        return None
