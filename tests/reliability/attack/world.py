"""The documents of an attack, its database, and the other programs: those that write under the lock, and those that read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ForeignKey, String
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, document
from tests.support.databases import Database

# --------------------------------------------------------------------------------------------------
# A document with parts of every kind, each row with a counter, and second mappings of its tables.

CASCADE = "all, delete-orphan"


class Base(DeclarativeBase):
    """The declared classes."""


class Again(DeclarativeBase):
    """Second classes for their tables."""


def key() -> Mapped[int]:
    return mapped_column(primary_key=True, autoincrement=False)


@document(parts=("lines", "remarks", "errands"), version=True)
class Order(Base):
    __tablename__ = "at_order"
    id: Mapped[int] = key()
    version: Mapped[int] = mapped_column()
    count: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(cascade=CASCADE, back_populates="order")
    remarks: Mapped[list[Remark]] = relationship(
        primaryjoin=lambda: sa.and_(
            Order.id == sa.orm.foreign(Remark.owner_id), Remark.owner_kind == "order"
        )
    )
    errands: Mapped[list[Errand]] = relationship()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class Line(Base):
    __tablename__ = "at_line"
    id: Mapped[int] = key()
    order_id: Mapped[int] = mapped_column(ForeignKey("at_order.id"), index=True)
    count: Mapped[int] = mapped_column(default=0)
    order: Mapped[Order] = relationship(back_populates="lines")


class Remark(Base):
    """In an order or in another owner, as ``owner_kind`` says."""

    __tablename__ = "at_remark"
    id: Mapped[int] = key()
    owner_id: Mapped[int]
    owner_kind: Mapped[str] = mapped_column(String(10))
    count: Mapped[int] = mapped_column(default=0)


class Task(Base):
    """In no document, except for one of its subclasses."""

    __tablename__ = "at_task"
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "task"}  # noqa: RUF012
    id: Mapped[int] = key()
    kind: Mapped[str] = mapped_column(String(10))
    count: Mapped[int] = mapped_column(default=0)


class Errand(Task):
    __mapper_args__ = {"polymorphic_identity": "errand"}  # noqa: RUF012
    order_id: Mapped[int | None] = mapped_column(ForeignKey("at_order.id"))


class OrderAgain(Again):
    __table__ = Order.__table__


class LineAgain(Again):
    __table__ = Line.__table__


ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
DOCS = (1, 2)
NEW = 3
"""The document that some programs insert."""
TOKEN = "tenant"
"""The identity token under which some programs read a second object of a row."""

#: The rows of document N have keys from 10 * N on.
ROWS: dict[str, list[dict[str, Any]]] = {
    "at_order": [{"id": doc, "version": 1} for doc in DOCS],
    "at_line": [{"id": 10 * doc, "order_id": doc} for doc in DOCS],
    "at_remark": [
        *({"id": 10 * doc, "owner_id": doc, "owner_kind": "order"} for doc in DOCS),
        *({"id": 10 * doc + 1, "owner_id": doc, "owner_kind": "client"} for doc in DOCS),
    ],
    "at_task": [
        *({"id": 10 * doc, "kind": "errand", "order_id": doc} for doc in DOCS),
        *({"id": 10 * doc + 1, "kind": "task", "order_id": doc} for doc in DOCS),
    ],
}


def new_rows() -> list[Any]:
    """Return the objects of the new document."""
    return [
        Order(id=NEW, count=0),
        Line(id=10 * NEW, order_id=NEW, count=0),
        Remark(id=10 * NEW, owner_id=NEW, owner_kind="order", count=0),
        Errand(id=10 * NEW, order_id=NEW, count=0),
        Remark(id=10 * NEW + 1, owner_id=NEW, owner_kind="client", count=0),
        Task(id=10 * NEW + 1, count=0),
    ]


# --------------------------------------------------------------------------------------------------
# The attacked database, and the others: writers under the lock, and observers.

Row = tuple[str, int]
"""A table and a key; ``("lines", doc)`` stands for the lines that came to a document."""
Counters = Counter[Row]

THERE = "doclock_there"
"""The second schema, or the second database; on SQLite the name of the attached file."""

_AT_ONCE: dict[str, dict[str, Any]] = {"sqlite": {"timeout": 0}}
_UNSAFE = "PRAGMA synchronous = OFF"


class Place:
    """The tables in one database and schema: an engine for the program, and another program.

    :ivar schema: the default schema of the engine.
    """

    def __init__(self, database: Database, prefix: str = "") -> None:
        self._name, self._prefix = database.name, prefix
        database.create(Base.metadata)
        self.engine, self._others = new_engine(database), new_engine(database)
        self.schema = sa.inspect(self.engine).default_schema_name

    def row(self, table: str, key: int) -> Row:
        """Return the row of this table."""
        return self._prefix + table, key

    def has(self, row: Row) -> bool:
        """Return whether a row belongs to this place."""
        return row[0].rpartition(".")[0] == self._prefix.rstrip(".")

    def refill(self) -> None:
        with self._others.begin() as connection:
            for table in reversed(Base.metadata.sorted_tables):
                connection.execute(table.delete())
            for name, rows in ROWS.items():
                connection.execute(Base.metadata.tables[name].insert(), rows)

    def counters(self) -> Counters:
        """Return the committed counters."""
        with self._others.connect() as connection:
            return Counter({self.row(*row): count for row, count in self._read(connection)})

    def _read(self, connection: sa.Connection) -> Iterator[tuple[Row, int]]:
        for table in Base.metadata.sorted_tables:
            for key, count in connection.execute(sa.select(table.c.id, table.c.count)):
                if count:
                    yield (table.name, key), count
        lines = sa.select(LINES.c.order_id, sa.func.count() - 1).group_by(LINES.c.order_id)
        for doc, more in connection.execute(lines):
            if more:
                yield ("lines", doc), more
            if doc not in DOCS:
                yield ("new", doc), 1

    def others_write(self, doc: int) -> bool:
        """Make another program increment the header and its parts, under the lock if it is free."""
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

    def is_locked(self, doc: int) -> bool:
        """Return whether another session cannot lock this document now, according to the server."""
        with self._others.connect() as connection:
            try:
                if self._name == "sqlite":
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                else:
                    where = sa.select(ORDERS.c.id).where(ORDERS.c.id == doc)
                    connection.execute(where.with_for_update(nowait=True))
            except DBAPIError:
                return True
            finally:
                connection.rollback()
        return False


class World:
    """The database of the scenarios.

    :param versioned: sessions check the version of a header.
    :param second: the second place, for the axes with a second place.
    """

    def __init__(
        self, database: Database, *, versioned: bool = True, second: Database | None = None
    ) -> None:
        self.name, self.versioned = database.name, versioned
        self.here = Place(database)
        self.places = [self.here]
        if second is not None:
            self.there = Place(second, "there.")
            self.places.append(self.there)
            self.both_schemas = new_engine(database)
            if self.name == "sqlite":
                path = self.there.engine.url.database
                sa.event.listen(
                    self.both_schemas,
                    "connect",
                    lambda driver, _: driver.execute(f"ATTACH DATABASE '{path}' AS {THERE}"),
                )

    def refill(self) -> None:
        for place in self.places:
            place.refill()

    def counters(self) -> Counters:
        """Return the committed counters."""
        return sum((place.counters() for place in self.places), Counter())

    def session(self) -> LockingSession:
        return LockingSession(self.here.engine)

    def version(self, session: LockingSession, doc: int) -> int:
        """Return the version of a header in the session's transaction."""
        with session.no_autoflush:
            found = session.execute(sa.select(ORDERS.c.version).where(ORDERS.c.id == doc))
            return int(found.scalar_one())


def new_engine(database: Database) -> sa.Engine:
    """Make an engine that never waits on SQLite, and uses the same isolation level everywhere."""
    own = {"isolation_level": "READ COMMITTED"} if database.name in ("mysql", "mariadb") else {}
    engine = database.engine(connect_args=_AT_ONCE.get(database.name, {}), **own)
    if database.name == "sqlite":  # no test kills it here: fsync() would take most of the time
        sa.event.listen(engine, "connect", lambda driver, _: driver.execute(_UNSAFE))
    return engine


@contextmanager
def second(database: Database) -> Iterator[Database]:
    """Make a second schema or file, and the same database with it as its default."""
    url = sa.make_url(database.url)
    if database.name == "sqlite":
        there = url.set(database=f"{url.database}-there")
        with sa.create_engine(there).connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    else:
        there = url.set(database=THERE)
        if database.name == "postgresql":
            there = url.update_query_dict({"options": f"-csearch_path={THERE}"})
        with database.observer().connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {THERE}")
    made = Database(database.column, there.render_as_string(hide_password=False), database.version)
    try:
        yield made
    finally:
        made.close()
        if database.name != "sqlite":
            with database.observer().connect() as connection:
                connection.exec_driver_sql(f"DROP SCHEMA {THERE}")
