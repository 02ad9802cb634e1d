"""The files of sa_doclock, distinguished from others by their folder: a clone may have any name, in any place."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from os import sep
from pathlib import Path
from types import FrameType

import sa_doclock

PACKAGE = Path(sa_doclock.__file__).parent
_PREFIX = f"{PACKAGE}{sep}"


def own_path(file: str) -> str | None:
    """Return the path of a file in the package; None for a file of others."""
    return file.removeprefix(_PREFIX) if file.startswith(_PREFIX) else None


# --------------------------------------------------------------------------------------------------
# The work that a function does, counted in a way that is the same on every machine.


def calls_of(function: Callable[[], object]) -> int:
    """Return how many Python functions are called, and generators resumed, of any module."""
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
