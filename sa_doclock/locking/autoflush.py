"""A block in which the session flushes nothing by itself: every lock is taken in one.

Not by the execution option "autoflush": it counts neither for Core nor for what loader options
send.
"""

from __future__ import annotations

from sqlalchemy.orm import Session


class without_autoflush:  # noqa: N801  # stands behind "with", like those of contextlib
    """The same as ``with session.no_autoflush:``, in a third of its time."""

    __slots__ = ("_before", "_session")

    def __init__(self, session: Session) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._before = self._session.autoflush
        self._session.autoflush = False

    def __exit__(self, *_: object) -> None:
        self._session.autoflush = self._before
