"""A folder for what takes a download to get, so that the next run does not need one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder called ``key``, made by ``fill`` when it is not there yet.

    The folder appears under its name only when ``fill`` has returned, so an interrupted run leaves
    nothing half-made behind. Remove the folder to have it made afresh, with newer versions.

    :param fill: gets an empty folder, and fills it with the files to keep.
    """
    home = Path(os.environ.get("SA_DOCLOCK_TEST_CACHE") or _REPOSITORY / ".servers")
    folder = home / key
    if folder.is_dir():
        return folder
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home, prefix="unfinished-") as scratch:
        made = Path(scratch) / key
        made.mkdir()
        fill(made)
        # Another run may have been faster; its folder is as good as ours.
        with contextlib.suppress(OSError):
            made.rename(folder)
    return folder
