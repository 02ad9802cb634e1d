"""The work that a function does, counted in a way that is the same on every machine."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


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
