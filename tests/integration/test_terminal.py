# SPDX-License-Identifier: Apache-2.0
"""What report, whatif, compare and doctor print on terminals of all kinds."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest

ROOT_NAME = "Läufe-日本"
COMMANDS = ("report", "table", "whatif", "compare", "doctor")
LATIN = {"LC_ALL": "", "LC_CTYPE": "", "LANG": "de_DE.ISO-8859-1"}
UTF8 = {"LC_ALL": "", "LC_CTYPE": "", "LANG": "C.UTF-8"}


@pytest.fixture(scope="module")
def runs(build_dir, tmp_path_factory):
    directory = tmp_path_factory.mktemp("terminal")
    for name in ("starved", "launches", "markup"):
        (directory / name).mkdir()
        subprocess.run([build_dir / "bin" / "gpubusy_scenario", name, directory / name, "recording"],
                       check=True, timeout=60)
    return directory


def words(gpubusy, command, runs):
    return [str(word) for word in {
        "report": [gpubusy, "report", runs / "starved"],
        "table": [gpubusy, "report", runs / "starved", "--by", "line"],
        "whatif": [gpubusy, "whatif", runs / "starved"],
        "compare": [gpubusy, "compare", runs / "starved", runs / "launches", "--fail-if",
                    "step_time>5000%"],
        "doctor": [gpubusy, "doctor"],
    }[command]]


@pytest.fixture
def on_terminal(clean_environment, tmp_path):
    """Runs a command with a terminal as its output; returns what that was given."""

    def on_terminal(command, columns=100, **variables):
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        environment = {**clean_environment, "TERM": "xterm", **variables}
        environment.pop("NO_COLOR", None)
        environment.update({k: v for k, v in variables.items() if k == "NO_COLOR"})
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, stdin=subprocess.DEVNULL,
                                   stdout=theirs, stderr=subprocess.PIPE)
        os.close(theirs)
        out = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # EIO: nobody has the other end any more
                break
            if not part:
                break
            out += part
        os.close(ours)
        errors = process.stderr.read()
        assert process.wait(60) in (0, 1), errors
        assert out, errors
        return out.replace(b"\r\n", b"\n")

    return on_terminal


@pytest.mark.parametrize("command", COMMANDS)
def test_colours_on_a_terminal_alone_and_not_where_they_are_unwanted(
        gpubusy, run, runs, on_terminal, command):
    line = words(gpubusy, command, runs)
    piped = run(line, env=UTF8, text=False).stdout
    assert piped and b"\x1b" not in piped
    shown = on_terminal(line, **UTF8)
    if command not in ("table", "whatif"):  # these have none
        assert b"\x1b[" in shown
    without = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    assert b"\x1b" not in without
    for variables in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_terminal(line, **UTF8, **variables)
        assert b"\x1b" not in plain
        if command != "doctor":  # that looks at the machine, which changes
            assert plain == without


@pytest.mark.parametrize("columns", [60, 72, 100, 160])
@pytest.mark.parametrize("command", COMMANDS)
def test_lines_are_no_longer_than_the_terminal(gpubusy, runs, on_terminal, command, columns):
    text = on_terminal(words(gpubusy, command, runs), columns, NO_COLOR="1", **UTF8).decode()
    too_long = [line for line in text.splitlines() if len(line) > columns]
    assert not too_long


@pytest.mark.parametrize("command", COMMANDS)
def test_narrower_than_any_table_is_as_sixty(gpubusy, runs, on_terminal, command):
    if command == "doctor":
        pytest.skip("looks at the machine, which changes")
    line = words(gpubusy, command, runs)
    assert on_terminal(line, 20, **UTF8) == on_terminal(line, 60, **UTF8)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_other_characters_than_the_locale_has(gpubusy, run, runs, command):
    line = words(gpubusy, command, runs)
    ascii = run(line, env=LATIN, text=False).stdout
    assert ascii.isascii(), [c for c in ascii.decode() if not c.isascii()]
    wide = run(line, env=UTF8, text=False).stdout.decode()
    assert wide
    # An empty or C locale tells nothing in containers.
    if command != "doctor":
        none = {"LC_ALL": "C", "LC_CTYPE": "", "LANG": ""}
        assert run(line, env=none, text=False).stdout.decode() == wide


def test_names_of_other_scripts_come_through(gpubusy, run, runs, tmp_path):
    there = tmp_path / ROOT_NAME
    there.mkdir()
    recording = there / "größe.gpubusy"
    made = next((runs / "starved").iterdir()).read_bytes()
    assert made.count(b"node1\0") == 1  # its host
    recording.write_bytes(made.replace(b"node1\0", "nöd1".encode() + b"\0"))
    document = json.loads(run([gpubusy, "report", "--json", there]).stdout)
    assert document["path"] == str(there)
    assert document["processes"][0]["recording"] == str(recording)
    assert document["processes"][0]["host"] == "nöd1"
    # A locale that has them not: names stay as they are, what is ours is ASCII.
    for locale in (UTF8, LATIN):
        assert "pid 4242 on nöd1, " in run([gpubusy, "report", there], env=locale).stdout
    exported = run([gpubusy, "export", there])
    assert exported.returncode == 0, exported.stderr
    assert Path(exported.stdout.split()[0]).name.startswith("nöd1_4242.")
    compared = json.loads(run([gpubusy, "compare", "--json", there, recording]).stdout)
    assert compared["before"] == str(there) and compared["after"] == str(recording)
    markdown = run([gpubusy, "compare", "--markdown", there, recording]).stdout
    assert f"`{there}`" in markdown
    missing = run([gpubusy, "report", tmp_path / "nichts-見"])
    assert missing.returncode == 1 and "nichts-見" in missing.stderr
    # Bytes that are no UTF-8 do not make the document invalid.
    odd = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(odd)
    os.link(recording, odd + b"/x.gpubusy")
    result = subprocess.run([gpubusy, "report", "--json", odd], capture_output=True, timeout=60)
    assert result.returncode == 0
    assert "\ufffd" in json.loads(result.stdout)["path"]
    written = run([gpubusy, "report", there, "--report", there / "bericht.txt"])
    assert written.returncode == 0 and (there / "bericht.txt").stat().st_size > 1000


@pytest.mark.parametrize("command", ["report", "table", "compare", "whatif"])
def test_names_of_the_program_cannot_command_the_terminal(gpubusy, runs, on_terminal, command):
    line = [str(w).replace("/starved", "/markup") for w in words(gpubusy, command, runs)]
    shown = on_terminal(line, NO_COLOR="1", **UTF8)
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]", shown)
