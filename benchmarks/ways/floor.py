"""The floor: a correct lock in a few lines, without the rest of sa_doclock.

It builds the SELECT once, with bind parameters, and another one for the parts of a document.  It detects
no pending changes, no wrong isolation level and no wrong connection, and translates no error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.orm.attributes import set_committed_value

from benchmarks.lab.models import Detail, Doc
from benchmarks.ways import Way, nothing
from benchmarks.ways.orm import begin_by_hand, change, total_of

FLOOR = "the floor"
FLOOR_WHOLE = "the floor, whole"


class FloorSession(Session):
    """A Session that locks a document by its key."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.held: dict[int, bool] = {}

    def locked(self, number: int, *, read: bool, whole: bool) -> Any:
        with self.no_autoflush:
            doc = self.scalars(_header(read=read), {"key": number}).one()
            self.held[number] = read
            if whole:
                details = self.scalars(_details(), {"key": number}).all()
                set_committed_value(doc, "details", details)
        return doc


@lru_cache
def _header(*, read: bool) -> sa.Select[Any]:
    statement = sa.select(Doc).where(Doc.id == sa.bindparam("key"))
    statement = statement.with_for_update(of=Doc.__table__, read=read)
    return statement.execution_options(populate_existing=True)


@lru_cache
def _details() -> sa.Select[Any]:
    statement = sa.select(Detail).where(Detail.doc_id == sa.bindparam("key"))
    return statement.execution_options(populate_existing=True)


def floor(engine: sa.Engine, name: str = FLOOR, *, whole: bool = False) -> Way:
    sessions = sessionmaker(engine, class_=FloorSession)
    begin = begin_by_hand(engine)

    def update(number: int) -> None:
        with sessions() as session:
            begin(session, "BEGIN IMMEDIATE")
            doc = session.locked(number, read=False, whole=whole)  # kept, as in hand-written code
            change(doc)
            session.commit()

    def load(number: int) -> int:
        with sessions() as session:
            begin(session, "BEGIN")
            doc = session.locked(number, read=True, whole=whole)
            total = total_of(doc)
            session.rollback()
        return total

    return Way(name, update, load, nothing)


def floor_whole(engine: sa.Engine) -> Way:
    return floor(engine, FLOOR_WHOLE, whole=True)
