# SPDX-License-Identifier: Apache-2.0
"""The injected library as an ELF file: what it shows, what it needs, what it costs others."""

import re
import subprocess


def output(*command) -> str:
    return subprocess.run(
        [str(part) for part in command], check=True, capture_output=True, text=True
    ).stdout


def test_exports_the_hook_table_and_nothing_else(library, build_dir):
    exported = {line.split()[-1] for line in output("nm", "-D", "--defined-only", library).splitlines()}
    rows = set(output(build_dir / "bin" / "gpubusy_hook_names").split())
    assert len(rows) > 200
    assert exported == rows | {"dlsym", "dlvsym", "InitializeInjectionNvtx2"}
    assert not any("@" in name for name in exported), "a version node would disable interposition"


def test_needs_libc_only(library):
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))
    assert [name for name in needed if not name.startswith("ld-linux")] == ["libc.so.6"]
    undefined = output("nm", "-D", "--undefined-only", library)
    assert not re.search(r"GLIBCXX|CXXABI|GCC_", undefined)
    assert not re.search(r"\b(_Unwind_|__gxx|_Zn|_Zd|__tls_get_addr)", undefined)


def test_static_tls_is_tiny(library):
    tls = re.search(r"TLS\s+\S+ \S+ \S+ 0x\S+ 0x(\S+)", output("readelf", "-lW", library))
    assert tls and int(tls.group(1), 16) <= 64


def test_no_executable_stack_and_bound_now(library):
    headers = output("readelf", "-lW", library)
    assert re.search(r"GNU_STACK.*RW ", headers) and not re.search(r"GNU_STACK.*RWE", headers)
    assert "NOW" in output("readelf", "-d", library)
