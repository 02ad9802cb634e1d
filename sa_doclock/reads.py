"""Where a row of a declared document was read: what an UnlockedWrite tells of it.

Only declared documents are listened to; of each object the statement is remembered that
loaded it last, and with guard tracing the line of the program that ran it.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.orm import InstanceState, Mapper, Session

from .ledger import Ledger
from .shapes import statement_of

_KEY = "sa_doclock.read"
_LIBRARIES = (
    "<sqlalchemy generated",  # wrappers, which have no file
    contextlib.__file__,
    *(f"{Path(file).parent}{os.sep}" for file in (__file__, sqlalchemy.__file__)),
)
_followed: WeakSet[Mapper[Any]] = WeakSet()
_readers: WeakKeyDictionary[Session, _Reader] = WeakKeyDictionary()


class _Reader(NamedTuple):
    """What a session has to do with what it reads."""

    ledger: Ledger
    tracing: bool


class Read(NamedTuple):
    """How an object was loaded the last time."""

    statement: Any
    how: str
    line: str | None


def note_reads(session: Session, ledger: Ledger, *, tracing: bool) -> None:
    """Remember what this session reads, and with tracing the lines of the program."""
    _readers[session] = _Reader(ledger, tracing)


def follow(mapper: Mapper[Any]) -> None:
    """Remember the statements that load objects of this class and its subclasses."""
    if mapper not in _followed:
        _followed.add(mapper)
        event.listen(mapper.class_, "load", _note, raw=True, propagate=True)
        event.listen(mapper.class_, "refresh", _note, raw=True, propagate=True)


def _note(state: InstanceState[Any], context: Any, *_: object) -> None:
    reader = None if context is None else _readers.get(context.session)
    if reader is None:
        return
    how = " without the lock"
    if reader.ledger.asked:
        how = " under a lock that is not held any more"
    elif reader.ledger.held:
        how = ""  # of which document does not matter so much as to find it out for every row
    line = _line_of_program() if reader.tracing else None
    state.info[_KEY] = Read(statement_of(context), how, line)


def told(state: InstanceState[Any]) -> str:
    """The sentence that says where the object was read; empty where it is not known."""
    read: Read | None = state.info.get(_KEY)
    if read is None:
        return ""
    where = f", at {read.line}" if read.line else ""
    return f"  It was read{read.how} by {' '.join(str(read.statement).split())}{where}."


def frame_of_program() -> FrameType | None:
    """The innermost frame that is neither SQLAlchemy's nor ours."""
    inside = (f for f in _frames() if not f.f_code.co_filename.startswith(_LIBRARIES))
    return next(inside, None)


def _line_of_program() -> str | None:
    frame = frame_of_program()
    if frame is None:
        return None
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    greenlet = getattr(sys.modules.get("greenlet"), "getcurrent", lambda: None)()
    while frame is not None:
        yield frame
        frame = frame.f_back
        if frame is None and greenlet is not None:  # asyncio: who awaits is in the parent
            greenlet = greenlet.parent
            frame = None if greenlet is None else greenlet.gr_frame
