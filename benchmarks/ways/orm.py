"""SQLAlchemy's ORM by hand, as a good engineer writes it; every ratio compares with this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, selectinload, sessionmaker
from sqlalchemy.orm.interfaces import ORMOption

from benchmarks.lab.figures import Absent
from benchmarks.lab.models import Doc, numbers
from benchmarks.ways import Way, nothing

BY_HAND = "ORM by hand"
BY_HAND_EAGER = "ORM by hand, selectinload"
BY_HAND_TIMED = "ORM by hand, lock_timeout"


def orm(engine: sa.Engine) -> Way:
    """Load the details lazily."""
    return _by_hand(BY_HAND, engine, ())


def orm_eager(engine: sa.Engine) -> Way:
    """Load the details by ``selectinload()``."""
    return _by_hand(BY_HAND_EAGER, engine, (selectinload(Doc.details),))


def orm_timed(engine: sa.Engine) -> Way:
    """Load the details lazily; limit the wait until the transaction ends.

    :raises Absent: the database has no single statement for this.
    """
    if engine.dialect.name != "postgresql":
        raise Absent("SET LOCAL lock_timeout is of PostgreSQL")
    limit = sa.text("SET LOCAL lock_timeout = '29500ms'")
    return _by_hand(BY_HAND_TIMED, engine, (), lambda session, _: session.execute(limit))


def _by_hand(
    name: str,
    engine: sa.Engine,
    options: Sequence[ORMOption],
    begin: Callable[[Session, str], object] | None = None,
) -> Way:
    sessions = sessionmaker(engine)
    begin = begin or begin_by_hand(engine)

    def update(number: int) -> None:
        with sessions() as session:
            begin(session, "BEGIN IMMEDIATE")
            doc = session.get(
                Doc, number, with_for_update=True, populate_existing=True, options=options
            )
            change(doc)
            session.commit()

    def load(number: int) -> int:
        with sessions() as session:
            begin(session, "BEGIN")
            doc = session.get(
                Doc, number, with_for_update={"read": True}, populate_existing=True, options=options
            )
            total = total_of(doc)
            session.rollback()
        return total

    return Way(name, update, load, nothing)


def begin_by_hand(engine: sa.Engine) -> Callable[[Session, str], None]:
    """Return a function that sends the BEGIN with SQLite's lock; on a server, it does nothing."""

    def begin(session: Session, statement: str) -> None:
        session.connection().exec_driver_sql(statement)

    def do_nothing(session: Session, statement: str) -> None: ...

    return begin if engine.dialect.name == "sqlite" else do_nothing


def change(doc: Any) -> None:
    assert doc is not None
    doc.details[0].value = next(numbers)
    doc.total = sum(detail.value for detail in doc.details)


def total_of(doc: Any) -> int:
    assert doc is not None
    return sum(detail.value for detail in doc.details)
