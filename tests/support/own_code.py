"""The files of sa_doclock, distinguished from others by their folder: a clone may have any name, in any place."""

from __future__ import annotations

from os import sep
from pathlib import Path

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
_PREFIX = f"{PACKAGE}{sep}"


def own_path(file: str) -> str | None:
    """Return the path of a file in the package; None for a file of others."""
    return file.removeprefix(_PREFIX) if file.startswith(_PREFIX) else None
