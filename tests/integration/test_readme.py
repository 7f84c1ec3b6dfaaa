# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_table_of_settings_is_that_of_the_code():
    result = subprocess.run([sys.executable, ROOT / ".ci" / "readme_settings.py", "--check"],
                            capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_files_that_the_readme_names_exist():
    import re

    for document in ("README.md", "CONTRIBUTING.md"):
        text = (ROOT / document).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            if not link.startswith("http"):
                assert (ROOT / link).exists(), f"{document}: {link}"
