"""One database, the program's session, and the others: who write under the lock, and who look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.reliability.attack.models import LINES, ORDERS, ROWS, Base, Order
from tests.support.databases import Database

Counters = Counter[tuple[str, int]]
"""The counter of each row; ``("lines", doc)`` is the number of lines that came to a document."""

_AT_ONCE: dict[str, dict[str, Any]] = {"sqlite": {"timeout": 0}}


class World:
    """The database of the scenarios.

    :param versioned: the version of a header is looked at.
    """

    def __init__(self, database: Database, *, versioned: bool = True) -> None:
        self.name, self.versioned = database.name, versioned
        database.create(Base.metadata)
        options = _AT_ONCE.get(database.name, {})
        own = {"isolation_level": "READ COMMITTED"} if self.name in ("mysql", "mariadb") else {}
        self.engine = database.engine(connect_args=options, **own)
        self._others = database.engine(connect_args=options, **own)

    def refill(self) -> None:
        """Set all counters to 0."""
        with self._others.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(table.delete())
            for name, rows in ROWS.items():
                connection.execute(Base.metadata.tables[name].insert(), rows)

    def session(self) -> LockingSession:
        """Return the session of the program."""
        return LockingSession(self.engine)

    def counters(self) -> Counters:
        """Return what is committed."""
        with self._others.connect() as connection:
            return Counter(dict(self._read(connection)))

    def _read(self, connection: sa.Connection) -> Iterator[tuple[tuple[str, int], int]]:
        for table in Base.metadata.sorted_tables:
            for key, count in connection.execute(sa.select(table.c.id, table.c.count)):
                if count:
                    yield (table.name, key), count
        lines = sa.select(LINES.c.order_id, sa.func.count() - 1).group_by(LINES.c.order_id)
        for doc, more in connection.execute(lines):
            if more:
                yield ("lines", doc), more

    def others_write(self, doc: int) -> bool:
        """Have another program count up the header and its parts, under the lock if it is free."""
        try:
            with LockingSession(self._others) as session:
                order = session.get_one_entity(
                    Order, doc, LockOptions.ForUpdate | LockOptions.NoWait
                )
                rows: list[Any] = [order, *order.lines, *order.remarks, *order.errands]
                for row in rows:
                    if row.id in (doc, 10 * doc):
                        row.count += 1
                session.commit()
        except LockNotAvailable:
            return False
        return True

    def version(self, session: LockingSession, doc: int) -> int:
        """Return the version of a header, as the transaction of the session has it."""
        with session.no_autoflush:
            found = session.execute(sa.select(ORDERS.c.version).where(ORDERS.c.id == doc))
            return int(found.scalar_one())

    def is_locked(self, doc: int) -> bool:
        """Return whether nobody else can lock this document now, as the server itself says."""
        with self._others.connect() as connection:
            try:
                if self.name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    where = sa.select(ORDERS.c.id).where(ORDERS.c.id == doc)
                    connection.execute(where.with_for_update(nowait=True))
            except DBAPIError:
                return True
            finally:
                connection.rollback()
        return False
