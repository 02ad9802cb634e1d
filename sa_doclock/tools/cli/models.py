"""Mapped classes of the user's program, by the words ``package.module:Name``."""

from __future__ import annotations

import importlib
import sys
import traceback
from functools import reduce
from typing import Any

from .database import BadUsage
from .workload import first_line


def import_name(words: str) -> Any:
    """Return what these words name; modules are looked for in the working directory too.

    :raises BadUsage: there is no such module, or nothing of that name in it.
    """
    module, colon, name = words.partition(":")
    if not (module and colon and name) or module.startswith("."):
        raise BadUsage(f"{words!r} is not package.module:Name")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the program's own code
        raise BadUsage(f"{module} cannot be imported: {_reason(error)}") from None
    try:
        return reduce(getattr, name.split("."), found)
    except AttributeError:
        raise BadUsage(f"there is no {name} in {module}") from None


def _reason(error: BaseException) -> str:
    """Return the message of an import that has failed, and the line of the program."""
    if isinstance(error, (ImportError, SyntaxError)):  # which say where, or need not
        return first_line(error)
    frames = traceback.extract_tb(error.__traceback__)
    line = next(
        f"{one.filename}:{one.lineno}" for one in reversed(frames) if one.filename[0] != "<"
    )
    return f"{type(error).__name__} at {line}: {first_line(error)}"
