"""SQLite, a file that is opened read-only: BEGIN IMMEDIATE may succeed there, and locks nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from sa_doclock import LockingSession, LockNotSupported, LockOptions
from tests.support.models import Line, Order

pytestmark = pytest.mark.databases("sqlite")

FOR_UPDATE = sa.select(Order.id).with_for_update()
LOCKS: dict[str, Callable[[LockingSession], Any]] = {
    "get_entity": lambda session: session.get_entity(Order, 1, lock=LockOptions.ForUpdate),
    "of a class": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
    "of keys": lambda session: session.execute(FOR_UPDATE).all(),
    "within": lambda session: session.scalars(sa.select(Line).where(Line.id.in_(FOR_UPDATE))).all(),
    "of the connection": lambda session: session.connection().execute(FOR_UPDATE).all(),
}


@pytest.fixture(params=["mode=ro", "creator", "do_connect", "query_only"])
def reader(request: pytest.FixtureRequest, engine: sa.Engine) -> Iterator[LockingSession]:
    file = f"file:{engine.url.database}?mode=ro"
    if request.param == "mode=ro":
        replica = sa.create_engine(f"sqlite:///{file}&uri=true")
    elif request.param == "creator":  # the URL does not tell
        replica = sa.create_engine(engine.url, creator=lambda: sqlite3.connect(file, uri=True))
    elif request.param == "do_connect":
        replica = sa.create_engine(engine.url)
        sa.event.listen(replica, "do_connect", lambda *_: sqlite3.connect(file, uri=True))
    else:
        replica = sa.create_engine(engine.url)
        sa.event.listen(replica, "connect", lambda one, _: one.execute("PRAGMA query_only = 1"))
    with LockingSession(replica) as session:
        yield session
    replica.dispose()


@pytest.mark.parametrize("opened", [False, True], ids=["begins", "joins"])
@pytest.mark.parametrize("take", LOCKS.values(), ids=LOCKS)
def test_no_lock_can_be_taken(
    reader: LockingSession, take: Callable[[LockingSession], Any], opened: bool
) -> None:
    if opened:
        reader.execute(sa.text("BEGIN"))
    total = reader.scalar(sa.select(Order.total).where(Order.id == 1))
    with pytest.raises(LockNotSupported, match="opened read-only"):
        take(reader)
    assert not reader.held_locks
    reader.rollback()
    assert reader.scalar(sa.select(Order.total).where(Order.id == 1)) == total


def test_a_plain_session_reads_it(reader: LockingSession) -> None:
    with Session(reader.get_bind()) as plain:
        assert plain.scalars(FOR_UPDATE).all()


def test_the_same_file_is_locked_by_others(reader: LockingSession, session: LockingSession) -> None:
    assert reader.scalar(sa.select(Order.id).where(Order.id == 1))
    assert session.get_entity(Order, 1, lock=LockOptions.ForUpdate)
