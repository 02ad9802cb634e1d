"""Mapped classes of the user's program, by the words ``package.module:Name``."""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from typing import Any

from .database import BadUsage


def import_name(words: str) -> Any:
    """Return what these words name; modules are looked for in the working directory too.

    :raises BadUsage: there is no such module, or nothing of that name in it.
    """
    module, colon, name = words.partition(":")
    if not (module and colon and name):
        raise BadUsage(f"{words!r} is not package.module:Name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise BadUsage(f"{module} cannot be imported: {error}") from None
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError:
        raise BadUsage(f"there is no {name} in {module}") from None
