"""The actions and expectations of the guard's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from sa_doclock import LockingSession, LockOptions, UnlockedWrite

T = TypeVar("T")
Action = Callable[[LockingSession], Any]

FIRST_ORDER, SECOND_ORDER = 1, 2


def hold(session: LockingSession, entity: type[T], *idents: Any) -> list[T]:
    """Lock these documents ForUpdate; keep the objects, because the identity map is weak."""
    return [session.get_one_entity(entity, one, LockOptions.ForUpdate) for one in idents]


@contextmanager
def writes_sent(session: LockingSession) -> Iterator[list[str]]:
    """Record each INSERT, UPDATE and DELETE that the block sends."""
    noted: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        if statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE", "REPLACE")):
            noted.append(statement)

    bind = session.get_bind()
    event.listen(bind, "before_cursor_execute", note)
    try:
        yield noted
    finally:
        event.remove(bind, "before_cursor_execute", note)


@contextmanager
def refused(
    session: LockingSession, entity: type[Any], ident: Any, *words: str, sent_first: bool = False
) -> Iterator[None]:
    """Assert that the block is refused for this document with these words, and writes nothing.

    :param sent_first: the flush may send statements, and undoes them.
    """
    with writes_sent(session) as sent, pytest.raises(UnlockedWrite) as caught:
        yield
    error = caught.value
    assert (error.entity, error.ident) == (entity, ident), str(error)
    assert not [word for word in words if word not in str(error)], str(error)
    assert sent_first or sent == []


def pending(session: LockingSession) -> set[Any]:
    """Return the pending writes of the next flush."""
    changed = {one for one in session.dirty if session.is_modified(one)}
    return {*session.new, *session.deleted, *changed}


def count(session: LockingSession, entity: Any, *where: Any) -> int:
    """Count rows, without a flush."""
    with session.no_autoflush:
        found = session.scalar(sa.select(sa.func.count()).select_from(entity).where(*where))
    assert found is not None
    return found
