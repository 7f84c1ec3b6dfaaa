# SPDX-License-Identifier: Apache-2.0
"""A control group with a quota of processor time, where one may be made (root, version 1 or 2)."""

import os
import time
from pathlib import Path


class Group:
    """`folder` is None where that is not allowed."""

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
        (folder / "cpu.cfs_quota_us").write_text(str(quota_us))

    @staticmethod
    def _version2(folder, quota_us, period_us):
        # Without the controller there is no such file, and none can be made.
        with open(folder / "cpu.max", "r+") as file:
            file.write(f"{quota_us} {period_us}")

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
