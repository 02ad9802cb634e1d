"""Ctrl-C at each line of some modules, and the amount of work of a function."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from os import sep
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy as sa

import sa_doclock

# --------------------------------------------------------------------------------------------------
# Ctrl-C at each line of some modules in turn.

UNFINISHED = sa.exc.SQLAlchemyError, AssertionError
"""The errors of a session of SQLAlchemy's whose own state was left unfinished."""


class CtrlC:
    """Raises KeyboardInterrupt at one line per call: the first line where it has not raised yet.

    :param modules: the beginnings of the modules' names.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._seen: set[tuple[str, int]] = set()
        self.raised: tuple[str, int] | None = None

    def during(self, step: Callable[[], object]) -> bool:
        """Call this with an interruption; return whether it happened."""
        self.raised, before = None, sys.gettrace()
        sys.settrace(self)
        try:
            step()
        except (KeyboardInterrupt, *UNFINISHED):
            assert self.raised is not None
        finally:
            sys.settrace(before)
        return self.raised is not None

    def __call__(self, frame: FrameType, what: str, _arg: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        if self.raised is not None or not name.startswith(self._modules):
            return None
        line = frame.f_code.co_filename, frame.f_lineno
        if what == "line" and line not in self._seen:
            self._seen.add(line)
            self.raised = line
            raise KeyboardInterrupt
        return self


# --------------------------------------------------------------------------------------------------
# The folder distinguishes sa_doclock's files from others: a clone can have any name and place.

PACKAGE = Path(sa_doclock.__file__).parent
_PREFIX = f"{PACKAGE}{sep}"


def own_path(file: str) -> str | None:
    """Return the path of a file in the package; None for other files."""
    return file.removeprefix(_PREFIX) if file.startswith(_PREFIX) else None


# --------------------------------------------------------------------------------------------------
# The work of a function, counted the same way on every machine.


def calls_of(function: Callable[[], object]) -> int:
    """Return the number of function calls and generator resumptions in Python, in any module."""
    calls = 0

    def profile(_frame: FrameType, what: str, _argument: object) -> None:
        nonlocal calls
        calls += what == "call"

    gc.disable()
    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls
