"""Facts that no documentation states for certain, tested on the server itself."""

from __future__ import annotations

import datetime as dt
import enum
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from lab.proof.page import Part, made, table
from lab.proof.tables import Base, Row, tables
from sa_doclock import (
    DeadlockDetected,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import LockStatements, MaxParameters
from sa_doclock.testing import wait_until_blocked

FOR_UPDATE = LockOptions.ForUpdate
_PAIRS = 1_000
_SECONDS = 2.0
_ROUNDED = dt.datetime(2026, 11, 29, 1, 2, 3, 3_000)  # noqa: DTZ001  # DATETIME has no zone


class Colour(enum.Enum):
    RED = "red"


class Job(Base):
    """A queue."""

    __tablename__ = "doclock_proof_job"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[str] = mapped_column(sa.String(20), index=True)
    priority: Mapped[int]
    note: Mapped[str] = mapped_column(sa.String(20))


class Painted(Base):
    """A key that drivers send as nvarchar; only varchar can seek its index."""

    __tablename__ = "doclock_proof_painted"
    colour: Mapped[Colour] = mapped_column(
        sa.Enum(Colour, values_callable=lambda _: ["red"]), primary_key=True
    )
    total: Mapped[int]


class Moment(Base):
    __tablename__ = "doclock_proof_moment"
    at: Mapped[dt.datetime] = mapped_column(sa.DateTime(), primary_key=True)
    total: Mapped[int]


class Pair(Base):
    __tablename__ = "doclock_proof_pair"
    first: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    second: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class Parcel(Base):
    """A table so large that a plan seeks its index, which lacks some columns."""

    __tablename__ = "doclock_proof_parcel"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    place: Mapped[int] = mapped_column(index=True)
    note: Mapped[str] = mapped_column(sa.String(20))


def savepoint(engine: sa.Engine) -> str:
    """Lock a row in a savepoint, roll back to it, and check whether another session gets the row."""
    with LockingSession(engine) as session, LockingSession(engine) as other:
        session.get_one_entity(Row, 2, FOR_UPDATE)  # the transaction continues either way
        nested = session.begin_nested()
        session.get_one_entity(Row, 1, FOR_UPDATE)
        nested.rollback()
        try:
            other.get_entity(Row, 1, FOR_UPDATE | LockOptions.NoWait)
        except LockNotAvailable:
            return "no: the row stays locked"
        return "yes"


def changed_row(engine: sa.Engine) -> str:
    """Change a row without a lock, and check what SkipLocked does with it."""
    with engine.connect() as connection, LockingSession(engine) as session:
        connection.execute(sa.update(Row).where(Row.id == 1).values(total=5))
        rows = session.entity_set(Row, FOR_UPDATE | LockOptions.SkipLocked, lock_timeout=_SECONDS)
        try:
            found = [row.id for row in session.scalars(rows)]
        except LockNotAvailable:
            return f"no: it waits, here {_SECONDS:g} s"
        finally:
            connection.rollback()
    return "yes" if found == [2] else f"**no: it returns {found}**"


def many_pairs(engine: sa.Engine) -> str:
    """Lock 1,000 composite keys in one statement, beyond the dialect's limit."""
    strategy = strategy_for(engine)
    keys = [(1, number) for number in range(_PAIRS)]
    with _limit(strategy.statements, 2 * _PAIRS), LockingSession(engine) as session:
        begun = time.perf_counter()
        found = session.get_entities(Pair, keys, FOR_UPDATE)
        return f"{len(found)} in {time.perf_counter() - begun:.1f} s"


def range_modes(engine: sa.Engine) -> str:
    """Lock a range, and return the server's spelling of the mode."""
    if engine.dialect.name != "mssql":
        return "not asked here"
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")
    query = "SELECT id FROM doclock_proof WITH (UPDLOCK) WHERE id BETWEEN 1 AND 2"
    modes = "SELECT DISTINCT request_mode FROM sys.dm_tran_locks WHERE request_session_id = @@SPID"
    with serializable.connect() as connection:
        connection.exec_driver_sql(query).all()
        return ", ".join(sorted(connection.exec_driver_sql(modes).scalars()))


def adopted_key(engine: sa.Engine) -> str:
    """Lock by selecting only the key, which an index could answer, and by key in another session."""
    with LockingSession(engine) as session, LockingSession(engine) as other:
        by_index = sa.select(Job.id).where(Job.state == "new").order_by(Job.id).limit(1)
        session.scalars(by_index.with_for_update()).all()
        try:
            other.get_entity(Job, 1, FOR_UPDATE | LockOptions.NoWait)
        except LockNotAvailable:
            return "yes"
        return "**no: both have it**"


def two_workers(engine: sa.Engine, *, index: bool) -> str:
    """Let two workers take the first free row of an ordered queue."""
    in_order = sa.Index("doclock_proof_queue", Job.state, Job.priority)
    if index:
        in_order.create(engine)
    try:
        with LockingSession(engine) as session, LockingSession(engine) as other:
            found = [_first_free(one) for one in (session, other)]
    finally:
        Job.metadata.tables[Job.__tablename__].indexes.discard(in_order)
        if index:
            in_order.drop(engine)
    if None in found:
        return "no: the second gets nothing"
    return "yes" if len(set(found)) == len(found) else f"**no: they get {found}**"


def _first_free(session: LockingSession) -> int | None:
    queue = session.entity_set(Job, FOR_UPDATE | LockOptions.SkipLocked, lock_timeout=_SECONDS)
    first = queue.where(Job.state == "new").order_by(Job.priority).limit(1)
    try:
        found = session.scalars(first).first()
    except LockNotAvailable:
        return None
    return None if found is None else found.id


def text_key(engine: sa.Engine) -> str:
    """Lock by a key that the driver sends as nvarchar, in a varchar column with a SQL_ collation."""
    with LockingSession(engine) as session:
        try:
            found = session.get_entity(Painted, Colour.RED, FOR_UPDATE)
        except LockNotSupported as error:
            return f"**no**: {error}".partition(" (Background")[0]
    return "yes" if found is not None else "**no: it is not found**"


@sa.event.listens_for(Painted.__table__, "after_create")
def _set_collation(painted: sa.Table, connection: sa.Connection, **_: object) -> None:
    """Give the key the collation of US installations, independent of the database."""
    if connection.dialect.name == "mssql":
        connection.exec_driver_sql(f"DROP TABLE {painted.name}")
        connection.exec_driver_sql(
            f"CREATE TABLE {painted.name} (colour varchar(20) COLLATE SQL_Latin1_General_CP1_CI_AS "
            "NOT NULL PRIMARY KEY, total int NOT NULL)"
        )


def datetime_key(engine: sa.Engine) -> str:
    """Lock by a time whose milliseconds a DATETIME column rounds."""
    with LockingSession(engine) as session:
        found = session.get_entity(Moment, _ROUNDED, FOR_UPDATE)
    return "yes" if found is not None else "**no**"


def behind_ddl(engine: sa.Engine) -> str:
    """With NoWait, lock a row of a table that another transaction is altering."""
    if engine.dialect.name != "mssql":
        return "not asked here"
    with engine.connect() as connection, LockingSession(engine) as session:
        connection.exec_driver_sql("ALTER TABLE doclock_proof ADD doclock_added int NULL")
        try:
            session.get_entity(Row, 1, FOR_UPDATE | LockOptions.NoWait)
        except LockNotAvailable:
            return "yes"
        finally:
            connection.rollback()
    return "**no: the lock was granted**"


def key_lookup(engine: sa.Engine) -> str:
    """Change an indexed column through which a set waits for the row."""
    if engine.dialect.name == "sqlite":  # SQLite has no row locks
        return "not asked here"
    with (
        ThreadPoolExecutor(1) as elsewhere,
        LockingSession(engine) as session,
        LockingSession(engine) as other,
    ):
        parcel = session.get_one_entity(Parcel, 1, FOR_UPDATE)
        waiter = elsewhere.submit(_lock_found_by_index, other)
        victims = []
        try:
            wait_until_blocked(other, session, step=waiter, timeout=60)
            parcel.place = 0
            session.save_changes()
        except DeadlockDetected:
            victims.append("the change")
        finally:
            session.rollback()
        victims += waiter.result()
    return f"yes: the victim is {victims[0]}" if victims else "no"


def _lock_found_by_index(session: LockingSession) -> list[str]:
    found = session.entity_set(Parcel, FOR_UPDATE, lock_timeout=60).where(Parcel.place == 1)
    try:
        session.scalars(found).all()
    except DeadlockDetected:
        return ["the set"]
    finally:
        session.rollback()
    return []


def read_only_replica(engine: sa.Engine) -> str:
    """Take SharedRead in an open transaction of a replica, if the address has a replica for readers."""
    url = _for_readers(engine.url)
    if url is None:
        return "not asked here"
    replica = sa.create_engine(url, module=engine.dialect.loaded_dbapi)
    try:
        with LockingSession(replica) as session:
            updateable = "CAST(DATABASEPROPERTYEX(DB_NAME(), 'Updateability') AS varchar(20))"
            if session.scalar(sa.text(f"SELECT {updateable}")) != "READ_ONLY":
                return "not asked: ApplicationIntent=ReadOnly leads to no replica"
            session.get_entity(Row, 1, LockOptions.SharedRead)
    except LockNotSupported:
        return "yes"
    finally:
        replica.dispose()
    return "**no: it is granted**"


def _for_readers(url: sa.URL) -> sa.URL | None:
    """Return the address of a readable replica; None: the driver has no option for it."""
    if url.drivername != "mssql+pyodbc":
        return None
    words = url.query.get("odbc_connect")
    if words is None:
        return url.update_query_dict({"ApplicationIntent": "ReadOnly"})
    return url.update_query_dict({"odbc_connect": f"{words};ApplicationIntent=ReadOnly"})


class Question(NamedTuple):
    """A question to the server.

    :ivar ask: returns the answer; a bold "no" in it contradicts a claim of the page.
    :ivar means: the claim in docs/mssql.md or docs/claiming.md that depends on the answer.
    """

    ask: Callable[[sa.Engine], str]
    means: str


QUESTIONS: Mapping[str, Question] = {
    "Does a rollback to a savepoint release the locks taken in it?": Question(
        savepoint,
        "yes or no, the session counts them as lost; no: they keep others out to the end",
    ),
    "Does SkipLocked leave out a row that another transaction has only changed?": Question(
        changed_row, "no: SkipLocked needs a lock_timeout there (optimized locking)"
    ),
    "Can one statement lock 1,000 composite keys?": Question(
        many_pairs, "an error 8623: the limit of 100 in a statement has to stay"
    ),
    "The modes of a lock of a range": Question(
        range_modes, "RangeS-U or RangeS_U: lock_waits() and errors name the holder by both"
    ),
    "Does with_for_update() of a key by an index exclude a lock by key?": Question(
        adopted_key, "no: with_for_update() locks an entry of an index, and an update can be lost"
    ),
    "Do two SkipLocked workers get different rows, without an index for ORDER BY?": Question(
        partial(two_workers, index=False), "no: the queue needs the index of docs/claiming.md"
    ),
    "And with the index?": Question(
        partial(two_workers, index=True), "no: that index is not enough, and the page is wrong"
    ),
    "Is a varchar key of a SQL_ collation found by the value of an Enum?": Question(
        text_key, "no: such keys cannot be locked, and the cast of the key does not help"
    ),
    "Is a DATETIME key found by a value with milliseconds?": Question(
        datetime_key, "no: such a document cannot be locked by key"
    ),
    "Does NoWait fail at once behind ALTER TABLE?": Question(
        behind_ddl, "no: NoWait can wait for DDL"
    ),
    "Can a set that an index finds deadlock with a change of that index's column?": Question(
        key_lookup, "no: the page warns of a deadlock that this server does not have"
    ),
    "Is SharedRead refused on a read-only replica?": Question(
        read_only_replica, "no: it has a hint that a replica ignores, and locks nothing"
    ),
}


def questions(engine: sa.Engine) -> Part:
    """Return the answers; a failed question does not stop the others.  Contradictions are in bold."""
    rows = []
    with tables(engine):
        with engine.begin() as connection:
            pairs = [{"first": 1, "second": number} for number in range(_PAIRS)]
            connection.execute(sa.insert(Pair), pairs)
            jobs = [{"id": n, "state": "new", "priority": n, "note": "-"} for n in (1, 2, 3)]
            connection.execute(sa.insert(Job), jobs)
            connection.execute(sa.insert(Painted).values(colour=Colour.RED, total=1))
            _insert_parcels(connection)
            connection.execute(sa.insert(Moment).values(at=_ROUNDED, total=1))
        for text, question in QUESTIONS.items():
            answer = _answer(engine, question.ask)
            rows.append({"Question": text, "Answer": answer, "It means": question.means})
    against = any("**" in str(row["Answer"]) for row in rows)
    return Part("Questions", list(table(rows)), holds=False if against else None)


def _insert_parcels(connection: sa.Connection) -> None:
    tens = sa.union_all(*(sa.select(sa.literal(n).label("ten")) for n in range(10))).subquery()
    ident = (tens.c.ten * _PAIRS + Pair.second).label("id")
    places = sa.select(ident, ident.label("place"), sa.literal("-").label("note"))
    of_each = places.select_from(sa.join(Pair, tens, Pair.first == 1))
    connection.execute(sa.insert(Parcel).from_select(["id", "place", "note"], of_each))


def _answer(engine: sa.Engine, ask: Callable[[sa.Engine], str]) -> str:
    return made("", lambda: Part("", [ask(engine)])).lines[0]


@contextmanager
def _limit(statements: LockStatements, parameters: int) -> Iterator[None]:
    """Let a statement have this many parameters of composite keys."""
    setattr(statements, "max_parameters", MaxParameters(of_or=parameters))  # noqa: B010  # a fact of its class
    try:
        yield
    finally:
        delattr(statements, "max_parameters")
