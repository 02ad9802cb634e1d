"""The temporary files of a run, in memory where there is enough of it.

The servers and SQLite wait for the disk at each commit, as they are configured to.  In memory nothing
else changes; the tests on SQLite take about half of the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")  # folders in it have random names
_NEEDED = 8 * 2**30  # bytes; a run takes about 1 GB
_MEMORY = Path("/proc/meminfo")


def keep_temporary_files_in_memory() -> None:
    """Have this process and its children make their temporary files there, if TMPDIR is not set."""
    if "TMPDIR" not in os.environ and _is_fit(_IN_MEMORY):
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None  # it is looked up again


def _is_fit(folder: Path) -> bool:
    """Return whether there is space for files, and programs may be run in it."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(folder).free, _free_memory()) >= _NEEDED


def _free_memory() -> int:
    """Return the bytes that the system can give to programs; 0 where it does not tell."""
    for line in _MEMORY.read_text().splitlines() if _MEMORY.exists() else ():
        name, _, kilobytes = line.partition(":")
        if name == "MemAvailable":
            return int(kilobytes.split()[0]) * 1024
    return 0
