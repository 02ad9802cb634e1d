"""A transaction that has written and locked something, in which a lock then fails; and a look at it.

The look goes past the session, by a second cursor of its driver's connection: the session refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockOptions
from tests.integration.lock_errors.rows import Next, Where
from tests.integration.locking.steps import finds_held
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Order, Voucher

Session = LockingSession
Step = Callable[[Session], Any]

Own = Literal["written", "locked", "read"]

WRITTEN = 99
"""The value that the transaction writes before the lock fails."""

# So that a lock may come after a read.
_READ_COMMITTED = {"isolation_level": "READ COMMITTED"}
_LEVEL = {"mysql": _READ_COMMITTED, "mariadb": _READ_COMMITTED}


class Scene:
    """Actors with sessions of their own kinds, on one database."""

    def __init__(self, database: Database, make_engine: Callable[..., sa.Engine]) -> None:
        self.database = database
        self._make_engine = make_engine
        self._level = _LEVEL.get(database.name, {})
        self._engine = make_engine(**self._level)
        self.stack = ExitStack()
        self._cast: list[Actor[Session]] = []

    @contextmanager
    def open(self) -> Iterator[Scene]:
        """Let all actors leave at the end."""
        try:
            yield self
        finally:
            for actor in self._cast:
                actor.leave()
            for actor in self._cast:
                actor.join()
            self.stack.close()

    def actor(self, name: str, engine: sa.Engine | None = None) -> Actor[Session]:
        """Bring an actor on, on this engine or on the one of everybody else."""
        engine = engine or self._engine
        self._cast.append(Actor(name, lambda: LockingSession(engine), self.database))
        return self._cast[-1]

    def victim(self, **options: Any) -> Actor[Session]:
        """Bring an actor on whose connection is his own, to be set as the situation needs it."""
        return self.actor("victim", self._make_engine(**self._level | options))

    def holder(self) -> Actor[Session]:
        """Bring an actor on who holds order 1 and has written it."""
        actor = self.actor("holder")
        actor.does(attempt(Where.LOCK, 1))
        actor.does(attempt(Where.FLUSH, 1))
        return actor

    def is_held(self, number: int) -> bool:
        """Return whether somebody holds this voucher."""
        with LockingSession(self._engine) as looker:
            return finds_held(Voucher, (2024, number))(looker)

    def runs(self, statement: sa.Executable) -> None:
        """Let somebody else do this, and commit."""
        with self._engine.begin() as connection:
            connection.execute(statement)


def begins(
    number: int = 2, *, savepoint: bool, own: Own = "written", order: int | None = None
) -> Step:
    """Make the step that opens a transaction in which a lock can fail.

    :param own: what it does with this voucher before.
    :param order: an order that it locks as well.
    """

    def step(session: Session) -> None:
        session.begin()
        info = session.info
        info["raw"] = session.connection().connection.dbapi_connection
        info["number"], info["own"] = number, own
        if session.get_bind().dialect.name == "sqlite":  # who writes there holds the file
            session.connection().exec_driver_sql("BEGIN")
            info["own"] = "read"
        mine = sa.and_(Voucher.year == 2024, Voucher.number == number)
        if info["own"] == "written":
            session.execute(sa.update(Voucher).where(mine).values(total=WRITTEN))
        elif info["own"] == "locked":
            info["kept"] = session.get_one_entity(Voucher, (2024, number), LockOptions.SharedRead)
        else:
            session.scalars(sa.select(Voucher.total).where(mine)).one()
        if order is not None:
            info["order"] = session.get_one_entity(Order, order, LockOptions.ForUpdate)
        if savepoint:
            info["savepoint"] = session.begin_nested()

    return step


def attempt(where: Where, ident: int, **how: Any) -> Step:
    """Make the step that wants this order, by a lock or by a write."""

    def step(session: Session) -> None:
        if where is Where.COMMIT:
            session.commit()
        elif where is Where.LOCK:
            session.get_one_entity(Order, ident, **{"lock": LockOptions.ForUpdate, **how})
        elif where is Where.STATEMENT:
            session.execute(sa.update(Order).where(Order.id == ident).values(total=77))
        else:
            session.get_one(Order, ident).total += 1
            session.flush()

    return step


def sets(statement: str) -> Step:
    """Make the step that sets a limit of the connection, past the session."""

    def step(session: Session) -> None:
        cursor = session.info["raw"].cursor()
        cursor.execute(statement)
        cursor.close()

    return step


def look(session: Session) -> Next | None:
    """Send one more statement, past the session; None where its answer tells nothing."""
    raw, number = session.info["raw"], session.info["number"]
    if session.get_bind().dialect.name == "sqlite":
        return Next.SAME if raw.in_transaction else Next.NEW
    cursor = raw.cursor()
    try:
        cursor.execute(f"SELECT total FROM lk_voucher WHERE year = 2024 AND number = {number}")
        ((total,),) = cursor.fetchall()
    except session.get_bind().dialect.loaded_dbapi.Error:
        return Next.REFUSED
    finally:
        cursor.close()
    if session.info["own"] != "written":
        return None
    return Next.SAME if total == WRITTEN else Next.NEW


def rolls_back_to_savepoint(session: Session) -> BaseException | None:
    """Go back to where ``begins()`` has set the savepoint; return what that has met."""
    try:
        session.info["savepoint"].rollback()
    except DBAPIError as error:
        return error
    return None
