"""The line of the program, outside the libraries, that a warning or an error concerns."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from os import sep
from pathlib import Path
from types import FrameType
from typing import Any

import sqlalchemy

_STANDARD = Path(contextlib.__file__).parent
# Threads: replaced as a whole, never changed: a thread reads the old or the new value.
_ours: tuple[str, ...] = (f"{Path(__file__).parent}{sep}", contextlib.__file__)
_RUNNERS = (
    *(f"{_STANDARD / name}{sep}" for name in ("asyncio", "concurrent")),
    f"{_STANDARD / 'threading.py'}",
)
_SQLALCHEMY = (
    "<sqlalchemy generated",  # wrappers, which have no file
    f"{Path(sqlalchemy.__file__).parent}{sep}",
)


def frame_of_program() -> FrameType | None:
    """Return the innermost frame that is neither SQLAlchemy's nor ours, nor runs a task or a thread."""
    return next(
        (
            frame
            for frame in frames()
            if not (is_of_library(frame) or frame.f_code.co_filename.startswith(_RUNNERS))
        ),
        None,
    )


def is_of_library(frame: FrameType) -> bool:
    """Return whether this frame is SQLAlchemy's or ours."""
    return frame.f_code.co_filename.startswith(_ours) or is_of_sqlalchemy(frame)


def count_as_ours(folder: Path) -> None:
    """Treat the frames of another package, which works for this one, as ours."""
    global _ours  # noqa: PLW0603
    _ours += (f"{folder}{sep}",)


def is_of_sqlalchemy(frame: FrameType) -> bool:
    """Return whether this frame is SQLAlchemy's."""
    # SQLAlchemy 2.0 has its wrappers in "<string>", as programs run by exec() do.
    return frame.f_code.co_filename.startswith(_SQLALCHEMY) or (
        frame.f_globals.get("__name__", "").startswith("sqlalchemy.")
    )


def line_of_program() -> str | None:
    """Return the calling line of the program: ``shop/orders.py:42``."""
    frame = frame_of_program()
    return None if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn_program(text: str, category: type[Warning]) -> None:
    """Warn as if the program's own line did."""
    frame = frame_of_program()
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
    else:
        registry = frame.f_globals.setdefault("__warningregistry__", {})
        where = (frame.f_code.co_filename, frame.f_lineno)
        module = frame.f_globals.get("__name__", "<string>")  # as in warnings.warn()
        warnings.warn_explicit(text, category, *where, module=module, registry=registry)


def frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, the innermost first, and the frames that await its greenlet."""
    frame, greenlet = inspect.currentframe(), None
    while frame is not None:
        yield frame
        frame = frame.f_back
        if frame is None:  # asyncio: the awaiting task is in the parent
            greenlet = parent_of(greenlet)
            frame = None if greenlet is None else greenlet.gr_frame


def parent_of(greenlet: Any) -> Any:
    """Return the greenlet that waits for this one, or for the current one if None.

    Returns None if there is none.
    """
    if greenlet is None:
        greenlet = getattr(sys.modules.get("greenlet"), "getcurrent", lambda: None)()
    return None if greenlet is None else greenlet.parent
