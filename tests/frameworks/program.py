"""The document of these tests: order 1 has the lines 10 and 20, order 2 has the line 5."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy import ForeignKey
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.pool import ConnectionPoolEntry, NullPool

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, document
from tests.integration.asyncio.drivers import for_asyncio
from tests.support.databases import ConnectionLog, Database

#: A framework has nothing to do with the server; one with row locks and one without are enough.
ON_TWO_DATABASES = [
    pytest.mark.databases("sqlite", "postgresql"),
    pytest.mark.not_databases("sqlite-journal", "postgresql-pipeline"),
]


class Base(DeclarativeBase):
    pass


@document(parts=("lines",))
class Order(Base):
    __tablename__ = "fw_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int] = mapped_column(default=0)
    lines: Mapped[list[Line]] = relationship(
        back_populates="order", cascade="all, delete-orphan", order_by="Line.id"
    )


class Line(Base):
    __tablename__ = "fw_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("fw_order.id"))
    value: Mapped[int]
    order: Mapped[Order] = relationship(back_populates="lines")


def fill(connection: sa.Connection) -> None:
    """Put the rows in the tables, which are empty."""
    rows: dict[type[Base], list[dict[str, Any]]] = {
        Order: [{"id": 1, "total": 30}, {"id": 2, "total": 5}],
        Line: [
            {"order_id": 1, "value": 10},
            {"order_id": 1, "value": 20},
            {"order_id": 2, "value": 5},
        ],
    }
    for entity, values in rows.items():
        connection.execute(sa.insert(entity), values)


def add_line(order: Order, value: int) -> int:
    """Change the order as a program does; return its new total."""
    order.lines.append(Line(value=value))
    order.total = sum(line.value for line in order.lines)
    return order.total


# --------------------------------------------------------------------------------------------------
# A database as a framework's program sees it: the framework's threads use its connections.

#: SQLite's own limit, 5 s, is over on a slow machine while a test looks.
PATIENT: dict[str, dict[str, Any]] = {"sqlite": {"connect_args": {"timeout": 60}}}


class AnyThread(ConnectionLog):
    """The connections of a program, by whatever thread they are used."""

    _latest: str | None = None

    def ids_of(self, thread: int) -> frozenset[int]:
        """Return the server's ids of all that are checked out."""
        with self._lock:
            return frozenset(server_id for _, server_id in self._users.values())

    def statement_of(self, thread: int) -> str | None:
        """Return what any thread last began to run on SQLite."""
        return self._latest

    def forget_statement(self, thread: int) -> None:
        """Begin a new step."""
        self._latest = None

    def _begun(self, statement: str) -> None:
        self._latest = statement

    def _connected(self, dbapi_connection: DBAPIConnection, record: ConnectionPoolEntry) -> None:
        super()._connected(dbapi_connection, record)
        if self._ask_id is None and hasattr(dbapi_connection, "run_async"):
            dbapi_connection.run_async(lambda driver: driver.set_trace_callback(self._begun))


class Program:
    """The engines of one program."""

    def __init__(self, database: Database) -> None:
        """Make no engine yet."""
        self.database = Database(database.column, database.url, database.version)
        self.database.connections = AnyThread(database.name)
        self.options = PATIENT.get(database.name, {})

    @property
    def url(self) -> str:
        """The URL of the database, for a framework that makes its engine itself."""
        return self.database.url

    def engine(self) -> sa.Engine:
        """Make an engine."""
        return self.database.engine(**self.options)

    def watch(self, engine: sa.Engine) -> None:
        """Note who uses an engine that the framework has made."""
        self.database.connections.watch(engine)

    def async_engine(self) -> AsyncEngine:
        """Make an engine without a pool: the event loops of the tests end before it does."""
        driver = "aiosqlite" if self.database.name == "sqlite" else "psycopg"
        url = for_asyncio(sa.make_url(self.url), driver)
        engine = create_async_engine(url, poolclass=NullPool, **self.options)
        self.watch(engine.sync_engine)
        return engine


class AsgiClient:
    """A client of an ASGI program in this process; each request has an event loop of its own."""

    def __init__(self, app: Any) -> None:
        """Send nothing yet."""
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def __enter__(self) -> AsgiClient:  # noqa: PYI034  # Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is kept open between two requests."""

    def get(self, path: str, **how: Any) -> httpx.Response:
        """Send a GET."""
        return asyncio.run(self._send("GET", path, how))

    def post(self, path: str, **how: Any) -> httpx.Response:
        """Send a POST."""
        return asyncio.run(self._send("POST", path, how))

    async def _send(self, method: str, path: str, how: dict[str, Any]) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://test") as client:
            return await client.request(method, path, **how)


def add_ten(session: LockingSession) -> None:
    """Lock order 1, add a line of 10; not committed yet."""
    add_line(session.get_one_document(Order, 1, LockOptions.ForUpdate), 10)
    session.flush()


def save(session: LockingSession) -> None:
    """Commit."""
    session.save_changes()


def is_free(session: LockingSession) -> bool:
    """Return whether nobody holds order 1."""
    try:
        session.get_one_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)
    except LockNotAvailable:
        return False
    finally:
        session.rollback()
    return True


def stored(session: LockingSession) -> tuple[int, list[int]]:
    """Return the total of order 1 and the values of its lines, as everybody sees them."""
    try:
        values = sa.select(Line.value).where(Line.order_id == 1).order_by(Line.id)
        total = sa.select(Order.total).where(Order.id == 1)
        return session.scalars(total).one(), list(session.scalars(values))
    finally:
        session.rollback()
