"""Puts the temporary files of a run into memory, if there is enough.

At each commit, the servers and SQLite wait for the disk, as configured.  In memory nothing else changes;
the tests on SQLite take about half the time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")  # its folders get random names
_NEEDED = 8 * 2**30  # bytes; a run takes about 1 GB
_MEMORY = Path("/proc/meminfo")


def keep_temporary_files_in_memory() -> None:
    """Make this process and its children put temporary files there, unless TMPDIR is set."""
    if "TMPDIR" not in os.environ and _is_fit(_IN_MEMORY):
        os.environ["TMPDIR"] = str(_IN_MEMORY)
        tempfile.tempdir = None  # Python looks it up again


def _is_fit(folder: Path) -> bool:
    """Return whether the folder has space for files, and allows programs to run."""
    if not os.access(folder, os.W_OK) or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return min(shutil.disk_usage(folder).free, _free_memory()) >= _NEEDED


def _free_memory() -> int:
    """Return the bytes that the system can give to programs; 0 if unknown."""
    for line in _MEMORY.read_text().splitlines() if _MEMORY.exists() else ():
        name, _, kilobytes = line.partition(":")
        if name == "MemAvailable":
            return int(kilobytes.split()[0]) * 1024
    return 0
