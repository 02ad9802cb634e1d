"""A folder for the results of downloads, so that the next run does not need them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def cached(key: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder called ``key``; if it is missing, make it with ``fill``.

    The folder gets its name only after ``fill`` has returned, so an interrupted run leaves no half-made
    folder. To rebuild a folder with newer versions, remove it.

    :param fill: gets an empty folder, and puts the files into it.
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
        # Another run may have been faster; its folder is equally good.
        with contextlib.suppress(OSError):
            made.rename(folder)
    return folder
