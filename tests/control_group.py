# SPDX-License-Identifier: Apache-2.0
"""A control group with a quota of processor time, where one may be made (root, version 1 or 2)."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path


class Group:
    """`folder` is None where that is not allowed. A quota of None is none."""

    def __init__(self, quota_us, period_us):
        self.folder = None
        name = f"gpubusy-test-{os.getpid()}"
        for parent, write in ((Path("/sys/fs/cgroup/cpu"), self._version1),
                              (Path("/sys/fs/cgroup"), self._version2)):
            folder = parent / name
            try:
                folder.mkdir()
            except OSError:
                continue
            try:
                write(folder, quota_us, period_us)
            except OSError:
                folder.rmdir()
                continue
            self.folder = folder
            return

    @staticmethod
    def _version1(folder, quota_us, period_us):
        (folder / "cpu.cfs_period_us").write_text(str(period_us))
        (folder / "cpu.cfs_quota_us").write_text(str(-1 if quota_us is None else quota_us))

    @staticmethod
    def _version2(folder, quota_us, period_us):
        # Without the controller there is no such file, and none can be made.
        with open(folder / "cpu.max", "r+") as file:
            file.write(f"{'max' if quota_us is None else quota_us} {period_us}")

    @property
    def members(self):
        return self.folder / "cgroup.procs"

    def enter(self):
        self.members.write_text(str(os.getpid()))

    def remove(self):
        for _ in range(100):
            try:
                self.folder.rmdir()
                return
            except OSError:  # its last process has not quite ended
                time.sleep(0.05)


# Ends with its parent, too.
BUSY = """
import os
parent = os.getppid()
while os.getppid() == parent:
    pass
"""


@contextlib.contextmanager
def processor_taken(count):
    """So many processes compute all the time meanwhile, outside of any group that is made here."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
