"""Each error of docs/errors.md on a real server: the remaining transaction, and the remedy."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy import select, update
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import registry

from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
    with_lock,
)
from sa_doclock.dialects import strategy_classes, strategy_for
from sa_doclock.dialects.base import Ends, LockStrategy
from sa_doclock.dialects.mssql import SQLServerLocks
from tests.integration.locking.steps import cross, finds_held
from tests.sql.driver import Script
from tests.sql.models import Customer
from tests.sql.models import Order as ScriptedOrder
from tests.sql.native import odbc18
from tests.sql.servers import serving
from tests.support.actors import Actor
from tests.support.actors import Step as SituationsStep
from tests.support.databases import Database
from tests.support.models import Line, Order, Voucher
from tests.support.rows import rows
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.each_value

# --------------------------------------------------------------------------------------------------
# The tables of docs/errors.md: an error, the remaining state of the transaction, the remedy.
#
# Each row is a test: a situation below causes the error, and the test checks the row.


class Next(enum.Enum):
    """The result of the next statement after a failed one."""

    SAME = enum.auto()  # runs in the same transaction: its writes and locks are intact
    REFUSED = enum.auto()  # by the server; the locks are released
    NEW = enum.auto()  # runs in a new transaction: the writes are lost


class Left(enum.Enum):
    """The rest of the transaction that the server keeps, in words and as the tests find it."""

    REST = "all but this statement"
    ABORTED = "aborted"
    GONE = "nothing"
    UNKNOWN = "not known: roll back"
    SNAPSHOT = "its reads"

    @property
    def next_statement(self) -> Next:
        """The server's reaction to the next statement, without a savepoint."""
        return {Left.ABORTED: Next.REFUSED, Left.GONE: Next.NEW}.get(self, Next.SAME)

    @property
    def savepoint_helps(self) -> bool:
        """Return whether a rollback to the savepoint restores the state before it."""
        return self is not Left.GONE


class Where(enum.Enum):
    """The program's action that fails."""

    LOCK = "lock"
    STATEMENT = "statement"
    FLUSH = "flush"
    COMMIT = "commit"


class Do(NamedTuple):
    """The advice for the program or its operator."""

    words: str
    retryable: bool


RETRY = Do("", retryable=True)  # as in the page's first table
LIMIT = Do("try again later; it is a limit for whole statements", retryable=True)
PRIMARY = Do("lock on the primary, or read with SnapshotRead", retryable=False)
CHANGE = Do("change the statement: the entity alone, EXISTS in place of a join", retryable=False)

LOCK, STATEMENT, FLUSH, COMMIT = Where
WRITES = (STATEMENT, FLUSH)


class Row(NamedTuple):
    number: int | str
    name: str
    error: type[DocLockError]
    situation: str
    when: str
    where: tuple[Where, ...]
    left: Left
    do: Do
    columns: tuple[str, ...] = ()  # of the test matrix; empty: all columns of the database


POSTGRESQL = (
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed",
        (LOCK,),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "55P03",
        "lock_not_available",
        LockNotAvailable,
        "own limit",
        "the server's `lock_timeout` has passed",
        (LOCK, *WRITES),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "57014",
        "query_canceled",
        LockNotAvailable,
        "statement limit",
        "`statement_timeout` has ended the wait",
        (LOCK,),
        Left.ABORTED,
        LIMIT,
    ),
    Row(
        "57014",
        "query_canceled",
        LockNotAvailable,
        "cancelled",
        "`pg_cancel_backend()` has ended the wait",
        (LOCK,),
        Left.ABORTED,
        Do("ask the administrator why, and try again later", retryable=True),
    ),
    Row(
        "40P01",
        "deadlock_detected",
        DeadlockDetected,
        "deadlock",
        "a circle of waits, after the server's `deadlock_timeout` (1 s)",
        (LOCK, *WRITES),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "0A000_RevalidateCachedQuery",
        "cached plan",
        SnapshotConflict,
        "altered, prepared",
        "DDL has changed the columns of a statement that the driver has prepared",
        (LOCK, STATEMENT),
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "40001",
        "serialization_failure",
        SnapshotConflict,
        "changed",
        "at REPEATABLE READ or SERIALIZABLE, of a row that another has changed",
        WRITES,
        Left.ABORTED,
        RETRY,
    ),
    Row(
        "40001",
        "serialization_failure",
        SnapshotConflict,
        "not serializable",
        "at SERIALIZABLE, of reads that another's writes contradict",
        (COMMIT,),
        Left.GONE,
        RETRY,
    ),
    Row(
        "25006",
        "read_only_sql_transaction",
        LockNotSupported,
        "read-only transaction",
        "a READ ONLY transaction, or a hot standby; SharedRead too",
        (LOCK,),
        Left.ABORTED,
        PRIMARY,
    ),
    Row(
        "0A000",
        "feature_not_supported",
        LockNotSupported,
        "no such lock",
        "a lock on rows that belong to no one table: the optional side of an outer join, ...",
        (LOCK,),
        Left.ABORTED,
        CHANGE,
    ),
)

_DEADLOCK = Row(
    1213,
    "ER_LOCK_DEADLOCK",
    DeadlockDetected,
    "deadlock",
    "a circle of waits, at once",
    (LOCK, *WRITES),
    Left.GONE,
    RETRY,
)
_READ_ONLY = (
    Row(
        1792,
        "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
        LockNotSupported,
        "read-only transaction",
        "ForUpdate in a READ ONLY transaction",
        (LOCK,),
        Left.REST,
        PRIMARY,
    ),
    Row(
        1290,
        "ER_OPTION_PREVENTS_STATEMENT",
        LockNotSupported,
        "read-only server",
        "ForUpdate on a server with `read_only`",
        (LOCK,),
        Left.REST,
        PRIMARY,
    ),
)
_NO_INDEX = Row(
    1176,
    "ER_KEY_DOES_NOT_EXITS",
    LockNotSupported,
    "no index for the key",
    "`get_entities()` of a class whose mapped key is neither the PRIMARY KEY nor a unique index",
    (LOCK,),
    Left.REST,
    Do("give the table that key, or lock one document at a time", retryable=False),
)

MYSQL = (
    Row(
        3572,
        "ER_LOCK_NOWAIT",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        3024,
        "ER_QUERY_TIMEOUT",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed; of a set, or under 0.25 s, `.orig` is the 3572 of a last try",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        3024,
        "ER_QUERY_TIMEOUT",
        LockNotAvailable,
        "statement limit",
        "`max_execution_time` has ended the wait; `.orig` as above",
        (LOCK,),
        Left.REST,
        LIMIT,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "own limit",
        "`innodb_lock_wait_timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    _DEADLOCK,
    Row(
        3058,
        "ER_USER_LOCK_DEADLOCK",
        DeadlockDetected,
        "deadlock of names",
        "a circle of [named locks](named-locks.md), at once",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    *_READ_ONLY,
    _NO_INDEX,
    Row(
        1412,
        "ER_TABLE_DEF_CHANGED",
        SnapshotConflict,
        "altered, snapshot",
        "DDL has changed the table since the snapshot was taken",
        (STATEMENT,),
        Left.REST,
        RETRY,
    ),
)

MARIADB = (
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "whole lock_timeout",
        "`lock_timeout=` of whole seconds has passed",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1969,
        "ER_STATEMENT_TIMEOUT",
        LockNotAvailable,
        "lock_timeout",
        "a fractional `lock_timeout=` has passed; of a set, or under 0.25 s, `.orig` is a last try's 1205",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        1969,
        "ER_STATEMENT_TIMEOUT",
        LockNotAvailable,
        "statement limit",
        "`max_statement_time` has ended the wait; `.orig` as above",
        (LOCK,),
        Left.REST,
        LIMIT,
    ),
    Row(
        1205,
        "ER_LOCK_WAIT_TIMEOUT",
        LockNotAvailable,
        "own limit",
        "`innodb_lock_wait_timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    _DEADLOCK,
    Row(
        1020,
        "ER_CHECKREAD",
        SnapshotConflict,
        "changed",
        "at REPEATABLE READ with `innodb_snapshot_isolation` (the default since 11.6.2), of a row "
        "that another has changed",
        WRITES,
        Left.GONE,
        RETRY,
    ),
    *_READ_ONLY,
    _NO_INDEX,
    Row(
        1412,
        "ER_TABLE_DEF_CHANGED",
        SnapshotConflict,
        "altered, snapshot",
        "DDL has changed the table since the snapshot was taken",
        (STATEMENT,),
        Left.REST,
        RETRY,
    ),
)

SQLITE = (
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "nowait",
        "NoWait, or `lock_timeout=0`, while another writes in the file",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "lock_timeout",
        "`lock_timeout=` has passed",
        (LOCK,),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "own limit",
        "the connection's `timeout` has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        5,
        "SQLITE_BUSY",
        LockNotAvailable,
        "readers",
        "in rollback-journal mode: readers are still there when the `timeout` has passed",
        (COMMIT,),
        Left.GONE,
        Do("run the whole transaction again; switch the file to WAL", retryable=True),
        ("sqlite-journal",),
    ),
    Row(
        6,
        "SQLITE_LOCKED",
        LockNotAvailable,
        "shared cache",
        "another connection of a shared cache; it never waits",
        (LOCK, *WRITES),
        Left.REST,
        Do("try again later; do without the shared cache", retryable=True),
    ),
    Row(
        517,
        "SQLITE_BUSY_SNAPSHOT",
        SnapshotConflict,
        "changed",
        "in WAL mode: another has written in the file since this transaction has read it",
        (LOCK, *WRITES),
        Left.SNAPSHOT,
        Do("run the whole transaction again; lock before the first read", retryable=True),
        ("sqlite",),
    ),
    Row(
        8,
        "SQLITE_READONLY",
        LockNotSupported,
        "read-only file",
        "ForUpdate of a file that is opened read-only: `mode=ro`, `PRAGMA query_only`",
        (LOCK,),
        Left.REST,
        Do("open the file for writing, or read with SnapshotRead", retryable=False),
    ),
)

_MIGRATE = Do("allow snapshots: the migration of docs/migrations.md", retryable=False)
_LATER = Do("try again when the migration has ended", retryable=False)

NO_SEEK = "the key's index cannot be sought: its type, a view, no such index"
NO_ROWS = "lock another table, or lock_key()"
MSSQL = (
    Row(
        1222,
        "lock request time-out",
        LockNotAvailable,
        "scripted",
        "NoWait, or LOCK_TIMEOUT has passed",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        1204,
        "no lock resource",
        LockNotAvailable,
        "scripted",
        "the server's memory for locks is full",
        (LOCK, *WRITES),
        Left.REST,
        RETRY,
    ),
    Row(
        1205,
        "deadlock victim",
        DeadlockDetected,
        "scripted",
        "a circle of waits",
        (LOCK, *WRITES),
        Left.GONE,
        RETRY,
    ),
    Row(
        3960,
        "update conflict",
        SnapshotConflict,
        "scripted",
        "a write under SNAPSHOT of what another has changed",
        WRITES,
        Left.GONE,
        RETRY,
    ),
    Row(
        3952,
        "snapshot not allowed",
        LockNotSupported,
        "scripted",
        "SharedRead or SnapshotRead, in a database that does not allow snapshots",
        (LOCK,),
        Left.UNKNOWN,
        _MIGRATE,
    ),
    *(
        Row(
            number,
            "snapshot in transition",
            LockNotSupported,
            "scripted",
            "SharedRead or SnapshotRead, while ALTER DATABASE switches snapshots",
            (LOCK,),
            Left.UNKNOWN,
            _LATER,
        )
        for number in (3953, 3954, 3956)
    ),
    Row(
        3951,
        "switched too late",
        WrongIsolation,
        "scripted",
        "SNAPSHOT was set in a transaction that had begun",
        (LOCK,),
        Left.UNKNOWN,
        Do("take the lock before any other statement of the transaction", retryable=False),
    ),
    *(
        Row(number, name, SnapshotConflict, "scripted", when, WRITES, Left.GONE, RETRY)
        for number, name, when in (
            (3961, "changed definition", "DDL of another transaction, under SNAPSHOT"),
            (3966, "row versions removed", "tempdb was full, under SNAPSHOT"),
            (3958, "row version not found", "tempdb was full, under SNAPSHOT"),
            (
                3907,
                "row version not found",
                "the persistent version store was full, under SNAPSHOT",
            ),
            (3949, "row version not found", "on a readable secondary"),
            (3948, "terminated", "a replica changed its role, or deleted old rows, under SNAPSHOT"),
        )
    ),
    *(
        Row(number, name, SnapshotConflict, "scripted", when, WRITES, Left.REST, RETRY)
        for number, name, when in (
            (13535, "temporal table", "a row whose period begins later than the transaction"),
            (601, "moved rows", "a scan by NoLock whose rows have moved"),
        )
    ),
    *(
        Row(number, name, kind, "scripted", when, (LOCK,), Left.UNKNOWN, Do(do, retryable=False))
        for number, name, kind, when, do in (
            (650, "READPAST", WrongIsolation, "SkipLocked at SERIALIZABLE", "use READ COMMITTED"),
            (651, "granularity", LockNotSupported, "a clustered columnstore index", NO_ROWS),
            (10794, "hint", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (41332, "level", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (41368, "level", LockNotSupported, "a memory-optimized table", NO_ROWS),
            (8622, "no plan", LockNotSupported, NO_SEEK, "[see the causes](mssql.md#keys)"),
        )
    ),
)

ROWS: Mapping[str, tuple[Row, ...]] = {
    "postgresql": POSTGRESQL,
    "mysql": MYSQL,
    "mariadb": MARIADB,
    "mssql": MSSQL,
    "sqlite": SQLITE,
}
"""By dialect file, in the order of the page."""


# --------------------------------------------------------------------------------------------------
# Actors and steps for the situations; each transaction has a write and a lock.

Session = LockingSession
Step = Callable[[Session], Any]

Own = Literal["written", "locked", "read"]

WRITTEN = 99
"""The value that the transaction writes before the lock fails."""

# Allows a lock after a read.
_READ_COMMITTED = {"isolation_level": "READ COMMITTED"}
_LEVEL = {"mysql": _READ_COMMITTED, "mariadb": _READ_COMMITTED}


class Scene:
    """Actors with separate sessions, on one database."""

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
        """Add an actor, on this engine or on the shared engine."""
        engine = engine or self._engine
        self._cast.append(Actor(name, lambda: LockingSession(engine), self.database))
        return self._cast[-1]

    def victim(self, **options: Any) -> Actor[Session]:
        """Add an actor with a separate connection, which the situation can configure."""
        return self.actor("victim", self._make_engine(**self._level | options))

    def holder(self) -> Actor[Session]:
        """Add an actor who holds order 1 and has written it."""
        actor = self.actor("holder")
        actor.does(attempt(Where.LOCK, 1))
        actor.does(attempt(Where.FLUSH, 1))
        return actor

    def is_held(self, number: int) -> bool:
        """Return whether another session holds this voucher."""
        with LockingSession(self._engine) as looker:
            return finds_held(Voucher, (2024, number))(looker)

    def runs(self, statement: sa.Executable) -> None:
        """Let another session do this, and commit."""
        with self._engine.begin() as connection:
            connection.execute(statement)


def begins(
    number: int = 2, *, savepoint: bool, own: Own = "written", order: int | None = None
) -> Step:
    """Make the step that opens a transaction in which a lock can fail.

    :param own: its earlier action on this voucher.
    :param order: an order that it also locks.
    """

    def step(session: Session) -> None:
        session.begin()
        info = session.info
        info["raw"] = session.connection().connection.dbapi_connection
        info["number"], info["own"] = number, own
        if session.get_bind().dialect.name == "sqlite":  # a writer holds the file
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
    """Make the step that requests this order, by a lock or by a write."""

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
    """Make the step that sets a limit of the connection, without the session."""

    def step(session: Session) -> None:
        cursor = session.info["raw"].cursor()
        cursor.execute(statement)
        cursor.close()

    return step


def look(session: Session) -> Next | None:
    """Send one more statement without the session; return None if its answer is inconclusive."""
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
    """Roll back to the savepoint of ``begins()``; return the outcome."""
    try:
        session.info["savepoint"].rollback()
    except DBAPIError as error:
        return error
    return None


# --------------------------------------------------------------------------------------------------
# The situations of the rows: in each, a lock or a write fails in an open transaction.

Victim = Actor[Session]
NoWait = LockOptions.ForUpdate | LockOptions.NoWait


class Failed(NamedTuple):
    """A failed lock: its victim, its error, and the step that still waits."""

    victim: Victim
    error: BaseException
    waiting: SituationsStep[Any] | None = None  # of the winner of a deadlock


class _Keyless:
    """A class with a primary key that its table lacks."""


_key = sa.Column("code", sa.String(20), primary_key=True)
registry().map_imperatively(_Keyless, sa.Table("le_keyless", sa.MetaData(), _key))


class _Altered:
    """A row of a table whose columns change."""


_ids = sa.Column("id", sa.Integer, primary_key=True)
registry().map_imperatively(
    _Altered, sa.Table("le_altered", sa.MetaData(), _ids, sa.Column("total", sa.Integer))
)

Situation = Callable[[Scene, Where, bool], Failed]
SITUATIONS: dict[str, Situation] = {}


def situation(name: str) -> Callable[[Situation], Situation]:
    """Register the situation under its name in the rows."""

    def register(made: Situation) -> Situation:
        SITUATIONS[name] = made
        return made

    return register


def fails(victim: Victim, step: Callable[[Session], Any]) -> Failed:
    error = victim.starts(step).exception()
    assert error is not None, "it was granted"
    return Failed(victim, error)


@situation("nowait")
def _nowait(scene: Scene, where: Where, savepoint: bool) -> Failed:
    return _against_holder(scene, where, savepoint, lock=NoWait)


@situation("lock_timeout")
def _lock_timeout(scene: Scene, where: Where, savepoint: bool) -> Failed:
    return _against_holder(scene, where, savepoint, lock_timeout=0.3)  # no last try


@situation("whole lock_timeout")
def _whole_lock_timeout(scene: Scene, where: Where, savepoint: bool) -> Failed:
    return _against_holder(scene, where, savepoint, lock_timeout=1)


_OWN_LIMIT: Mapping[str, str] = {
    "postgresql": "SET LOCAL lock_timeout = '50ms'",
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    "mariadb": "SET SESSION innodb_lock_wait_timeout = 1",
    "sqlite": "PRAGMA busy_timeout = 50",
}
STATEMENT_LIMIT: Mapping[str, str] = {
    "postgresql": "SET LOCAL statement_timeout = '200ms'",
    "mysql": "SET SESSION max_execution_time = 200",
    "mariadb": "SET SESSION max_statement_time = 0.2",
}


@situation("own limit")
def _own_limit(scene: Scene, where: Where, savepoint: bool) -> Failed:
    return _against_holder(scene, where, savepoint, limit=_OWN_LIMIT[scene.database.name])


@situation("statement limit")
def _statement_limit(scene: Scene, where: Where, savepoint: bool) -> Failed:
    return _against_holder(scene, where, savepoint, limit=STATEMENT_LIMIT[scene.database.name])


def _against_holder(
    scene: Scene, where: Where, savepoint: bool, limit: str | None = None, **how: Any
) -> Failed:
    scene.holder()
    victim = scene.victim()
    victim.does(begins(savepoint=savepoint))
    if limit is not None:
        victim.does(sets(limit))
    return fails(victim, attempt(where, 1, **how))


@situation("cancelled")
def _cancelled(scene: Scene, where: Where, savepoint: bool) -> Failed:
    holder, victim = scene.holder(), scene.victim()
    victim.does(begins(savepoint=savepoint))
    queued = victim.starts(attempt(where, 1))
    wait_until_blocked(waiter=victim, holder=holder, step=queued)
    cancel = sa.select(sa.func.pg_cancel_backend(victim.connection_id()))
    with scene.database.observer().connect() as connection:
        assert connection.execute(cancel).scalar_one()
    error = queued.exception()
    assert error is not None
    return Failed(victim, error)


@situation("deadlock")
def _deadlock(scene: Scene, where: Where, savepoint: bool) -> Failed:
    alice, bob = scene.actor("alice"), scene.actor("bob")
    alice.does(begins(1, savepoint=savepoint, order=1))
    bob.does(begins(2, savepoint=savepoint, order=2))
    loser, error, _, step = cross(alice, bob, lambda ident: attempt(where, ident))
    return Failed(loser, error, step)


@situation("deadlock of names")
def _deadlock_of_names(scene: Scene, _: Where, savepoint: bool) -> Failed:
    alice, bob = scene.actor("alice"), scene.actor("bob")
    for number, actor in enumerate((alice, bob), 1):
        actor.does(begins(number, savepoint=savepoint))
        actor.does(_takes_key(number))
    loser, error, _winner, step = cross(alice, bob, _takes_key)
    return Failed(loser, error, step)


def _takes_key(number: int) -> Callable[[Session], Any]:
    return lambda session: session.lock_key(f"report:{number}")


_CHANGED = sa.update(Order).where(Order.id == 1).values(total=31)


@situation("changed")
def _changed(scene: Scene, where: Where, savepoint: bool) -> Failed:
    sqlite = scene.database.name == "sqlite"
    if sqlite and sys.version_info < (3, 11):
        pytest.skip("sqlite3 tells no error numbers before Python 3.11")
    if scene.database.name == "mariadb":
        _skip_lenient(scene)
    level = {} if sqlite else {"isolation_level": "REPEATABLE READ"}
    victim = scene.victim(**level)
    victim.does(begins(savepoint=savepoint))
    victim.does(lambda session: session.scalars(sa.select(Order.total)).all())
    scene.runs(_CHANGED)
    return fails(victim, attempt(where, 1))


def _skip_lenient(scene: Scene) -> None:
    with scene.database.observer().connect() as connection:
        asked = "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"  # none before 10.6.18
        if [*connection.exec_driver_sql(asked)] != [("innodb_snapshot_isolation", "ON")]:
            pytest.skip("innodb_snapshot_isolation is off, as before MariaDB 11.6.2")


@situation("altered, prepared")
def _altered_prepared(scene: Scene, where: Where, savepoint: bool) -> Failed:
    _create_altered(scene)
    victim = scene.victim(connect_args={"prepare_threshold": 0})
    victim.does(_reads_altered(where))
    victim.does(lambda session: session.commit())
    victim.does(begins(savepoint=savepoint))
    scene.runs(sa.text("ALTER TABLE le_altered ALTER COLUMN total TYPE bigint"))
    return fails(victim, _reads_altered(where))


@situation("altered, snapshot")
def _altered_snapshot(scene: Scene, where: Where, savepoint: bool) -> Failed:
    _create_altered(scene)
    victim = scene.victim(isolation_level="REPEATABLE READ")
    victim.does(begins(savepoint=savepoint))
    victim.does(lambda session: session.scalars(sa.select(Order.total)).all())
    scene.runs(sa.text("ALTER TABLE le_altered MODIFY total BIGINT, ALGORITHM=COPY"))
    return fails(victim, _reads_altered(where))


def _reads_altered(where: Where) -> Callable[[Session], Any]:
    if where is Where.LOCK:
        return lambda session: session.get_entity(_Altered, 1, LockOptions.ForUpdate)
    return lambda session: session.scalars(sa.select(_Altered)).all()


def _create_altered(scene: Scene) -> None:
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE le_altered (id INTEGER PRIMARY KEY, total INTEGER)"
        )
        connection.exec_driver_sql("INSERT INTO le_altered VALUES (1, 1)")
    scene.stack.callback(_drop, scene, "le_altered")


@situation("not serializable")
def _not_serializable(scene: Scene, where: Where, savepoint: bool) -> Failed:
    victim, another = (scene.victim(isolation_level="SERIALIZABLE") for _ in range(2))
    victim.does(begins(savepoint=savepoint))
    for actor in (victim, another):
        actor.does(lambda session: session.scalars(sa.select(Order.total)).all())
    another.does(attempt(Where.FLUSH, 1))
    victim.does(attempt(Where.FLUSH, 2))
    another.does(lambda session: session.commit())
    return fails(victim, attempt(where, 2))


@situation("read-only transaction")
def _read_only_transaction(scene: Scene, where: Where, savepoint: bool) -> Failed:
    victim = scene.victim()
    if scene.database.name == "postgresql":  # it allows this within a transaction
        victim.does(begins(savepoint=savepoint))
        victim.does(sets("SET TRANSACTION READ ONLY"))
    else:
        victim.does(_next_transactions_are_read_only)
        victim.does(begins(savepoint=savepoint, own="locked"))
    return fails(victim, attempt(where, 1))


def _next_transactions_are_read_only(session: Session) -> None:
    session.connection().exec_driver_sql("SET SESSION TRANSACTION READ ONLY")
    session.rollback()


@situation("read-only server")
def _read_only_server(scene: Scene, where: Where, savepoint: bool) -> Failed:
    victim = scene.actor("victim", scene.stack.enter_context(_of_a_clerk(scene)))
    victim.does(begins(savepoint=savepoint, own="locked"))
    scene.stack.enter_context(_server_read_only(scene))
    return fails(victim, attempt(where, 1))


@situation("no index for the key")
def _no_index_for_key(scene: Scene, where: Where, savepoint: bool) -> Failed:
    assert where is Where.LOCK
    victim = scene.victim()
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql("CREATE TABLE le_keyless (code VARCHAR(20) NOT NULL)")
    scene.stack.callback(_drop, scene, "le_keyless")
    victim.does(begins(savepoint=savepoint, own="locked"))
    return fails(victim, lambda s: s.get_entities(_Keyless, ["a", "b"], LockOptions.ForUpdate))


def _drop(scene: Scene, table: str) -> None:
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql(f"DROP TABLE {table}")


@contextmanager
def _of_a_clerk(scene: Scene) -> Iterator[sa.Engine]:
    """Connect as a user whom ``read_only`` stops; it does not stop administrators."""
    url = sa.make_url(scene.database.url)
    with scene.database.observer().connect() as connection:
        for statement in (
            "DROP USER IF EXISTS doclock_clerk",
            "CREATE USER doclock_clerk IDENTIFIED BY 'Clerk-1-clerk'",
            f"GRANT SELECT, UPDATE ON `{url.database}`.* TO doclock_clerk",
        ):
            connection.exec_driver_sql(statement)
    clerk = url.set(username="doclock_clerk", password="Clerk-1-clerk")
    engine = sa.create_engine(clerk, isolation_level="READ COMMITTED")
    yield engine
    engine.dispose()
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql("DROP USER doclock_clerk")


@contextmanager
def _server_read_only(scene: Scene) -> Iterator[None]:
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql("SET GLOBAL read_only = ON")
        try:
            yield
        finally:
            connection.exec_driver_sql("SET GLOBAL read_only = OFF")


@situation("no such lock")
def _no_such_lock(scene: Scene, where: Where, savepoint: bool) -> Failed:
    optional = sa.select(Line, Order).outerjoin(Line.order)
    statement = with_lock(optional, LockOptions.ForUpdate, Order)
    assert where is Where.LOCK
    victim = scene.victim()
    victim.does(begins(savepoint=savepoint))
    return fails(victim, lambda session: session.execute(statement).all())


@situation("readers")
def _readers(scene: Scene, where: Where, savepoint: bool) -> Failed:
    reader, victim = scene.actor("reader"), scene.victim()
    reader.does(lambda session: session.get_one_entity(Order, 1, LockOptions.SharedRead))
    victim.does(begins(savepoint=savepoint))
    victim.does(attempt(Where.FLUSH, 1))
    victim.does(sets(_OWN_LIMIT["sqlite"]))
    return fails(victim, attempt(where, 1))


@situation("shared cache")
def _shared_cache(scene: Scene, where: Where, savepoint: bool) -> Failed:
    path = sa.make_url(scene.database.url).database
    engine = sa.create_engine(f"sqlite:///file:{path}?cache=shared&uri=true")
    scene.stack.callback(engine.dispose)
    holder, victim = scene.actor("holder", engine), scene.actor("victim", engine)
    victim.does(begins(savepoint=savepoint))
    holder.does(attempt(Where.LOCK, 1))
    return fails(victim, attempt(where, 1))


@situation("read-only file")
def _read_only_file(scene: Scene, where: Where, savepoint: bool) -> Failed:
    path = sa.make_url(scene.database.url).database
    engine = sa.create_engine(f"sqlite:///file:{path}?mode=ro&uri=true")
    scene.stack.callback(engine.dispose)
    victim = scene.actor("victim", engine)
    victim.does(begins(savepoint=savepoint))
    return fails(victim, attempt(where, 1))


# --------------------------------------------------------------------------------------------------
# The tests.


@pytest.fixture
def scene(documents: Database, make_engine: Callable[..., sa.Engine]) -> Iterator[Scene]:
    """Set the scene; all actors leave together, so none waits for another's lock."""
    with Scene(documents, make_engine).open() as scene:
        yield scene


# --------------------------------------------------------------------------------------------------
# Every row of docs/errors.md, on its own database.


def cases(database: str, column: str) -> pytest.MarkDecorator:
    """Run the test for each row of this column and each cause, with and without a savepoint."""
    found = [
        pytest.param(row, where, savepoint, id=f"{row.number} {row.situation}, {where.value}{at}")
        for row in ROWS[database]
        if not row.columns or column in row.columns
        for where, savepoint, at in _ways(row)
    ]
    return pytest.mark.parametrize(("row", "where", "savepoint"), found)


def _ways(row: Row) -> Iterator[tuple[Where, bool, str]]:
    for where in row.where:
        yield where, False, ""
    # The error does not depend on the failed action; a COMMIT has no savepoints.
    if row.where[0] is not Where.COMMIT:
        yield row.where[0], True, ", in a savepoint"


@pytest.mark.databases("postgresql")
@cases("postgresql", "postgresql")
def test_postgresql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mysql")
@cases("mysql", "mysql")
def test_mysql(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("mariadb")
@cases("mariadb", "mariadb")
def test_mariadb(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite")
@pytest.mark.not_databases("sqlite-journal")
@cases("sqlite", "sqlite")
def test_sqlite(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


@pytest.mark.databases("sqlite-journal")
@cases("sqlite", "sqlite-journal")
def test_sqlite_journal(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    check(scene, row, where, savepoint)


def check(scene: Scene, row: Row, where: Where, savepoint: bool) -> None:
    """Cause the error, and compare it with the row."""
    victim, error, winner = SITUATIONS[row.situation](scene, where, savepoint)
    assert type(error) is row.error
    assert isinstance(error, DocLockError)
    assert error.retryable is row.do.retryable
    assert row.number in numbers_of(error, victim.does(strategy_of))
    assert_left(scene, victim, left_by(row, where), savepoint=savepoint)
    goes_on = where is Where.STATEMENT and row.left in (Left.REST, Left.SNAPSHOT)
    assert victim.does(refuses) is not goes_on
    if savepoint:
        met = victim.does(rolls_back_to_savepoint)
        assert type(met) is (type(None) if row.left.savepoint_helps else row.error)
        assert victim.does(refuses) is not row.left.savepoint_helps
        if row.left.savepoint_helps:
            assert_left(scene, victim, Next.SAME)
    if row.left is Left.SNAPSHOT and victim.does(refuses) is False:
        with pytest.raises(row.error):
            victim.does(attempt(Where.STATEMENT, 1))
    victim.does(lambda session: session.rollback())
    assert victim.does(refuses) is False
    assert_left(scene, victim, Next.NEW)
    if winner is not None:
        winner.result()


def left_by(row: Row, where: Where) -> Next:
    """Return the next statement's result; Session itself rolls back when a flush fails."""
    return Next.NEW if where in (Where.FLUSH, Where.COMMIT) else row.left.next_statement


def assert_left(scene: Scene, victim: Victim, expected: Next, *, savepoint: bool = False) -> None:
    """Assert that the next statement sees the earlier writes, and another session the locks."""
    info = victim.does(lambda session: session.info)
    found = victim.does(look)
    assert found is expected or found is None
    if info["own"] != "read":
        kept = expected is Next.SAME or (expected is Next.REFUSED and savepoint)
        assert scene.is_held(info["number"]) is kept
        assert kept or victim.does(lambda session: not session.held_locks)


def strategy_of(session: Session) -> LockStrategy:
    strategy = strategy_for(session.get_bind())
    assert strategy is not None
    return strategy


def refuses(session: Session) -> bool:
    """Return whether the session refuses everything."""
    try:
        session.scalars(sa.select(Voucher.total)).all()
    except InvalidRequestError:  # PendingRollbackError is a subclass
        return True
    return False


def numbers_of(error: BaseException | None, strategy: LockStrategy) -> set[Any]:
    """Return the server's error numbers along the chain of driver errors."""
    found = set()
    while error is not None:
        found.add(strategy.errors.native_code(error))
        error = error.__context__
    return found


# --------------------------------------------------------------------------------------------------
# The tables of docs/errors.md list every error number.


@pytest.mark.parametrize("name", ROWS)
def test_every_number_of_a_database_has_its_rows(name: str) -> None:
    strategy = strategy_classes()[name]
    # A pooler's own error is not a situation of the server: see tests/integration/poolers.
    assert {row.number: row.error for row in ROWS[name]} == {
        number: found.error or found.in_lock
        for number, found in strategy.errors.codes.items()
        if (found.error or found.in_lock) and not found.advice
    }


@pytest.mark.parametrize("name", ROWS)
def test_what_is_no_failure_elsewhere_comes_from_a_lock_alone(name: str) -> None:
    strategy = strategy_classes()[name]
    for row in ROWS[name]:
        assert row.where == (Where.LOCK,) or strategy.errors[row.number].error, row


def test_every_situation_is_in_a_row() -> None:
    named = {row.situation for name, rows in ROWS.items() if name != "mssql" for row in rows}
    assert named == set(SITUATIONS)


# --------------------------------------------------------------------------------------------------
# SQLAlchemy's own errors that look like lock errors.

READ = sa.text("SELECT total FROM lk_order WHERE id = 1 FOR SHARE")
READ_ON_MARIADB = sa.text("SELECT total FROM lk_order WHERE id = 1 LOCK IN SHARE MODE")


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_limit_that_ends_a_statement_of_the_users(scene: Scene) -> None:
    scene.holder()
    victim = scene.victim()
    victim.does(begins(savepoint=False))
    victim.does(sets(STATEMENT_LIMIT[scene.database.name]))
    read = READ_ON_MARIADB if scene.database.name == "mariadb" else READ
    error = victim.starts(lambda session: session.execute(read)).exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)


@pytest.mark.databases("mysql", "mariadb")
def test_kill_query(scene: Scene) -> None:
    holder, victim = scene.holder(), scene.victim()
    queued = victim.starts(attempt(Where.LOCK, 1))
    wait_until_blocked(waiter=victim, holder=holder, step=queued)
    with scene.database.observer().connect() as connection:
        connection.exec_driver_sql(f"KILL QUERY {victim.connection_id()}")
    error = queued.exception()
    assert isinstance(error, DBAPIError)
    assert not isinstance(error, DocLockError)
    assert error.orig is not None
    assert error.orig.args[0] == 1317


# --------------------------------------------------------------------------------------------------
# SQL Server's rows of docs/errors.md: a scripted driver raises each error number in each place.
#
# Microsoft documents when the server raises it, and the state that it leaves.


@pytest.fixture
def scripted() -> Iterator[tuple[LockingSession, Script]]:
    """Open a session on a scripted server, in a transaction that has read a row."""
    with serving("mssql") as (engine, script), LockingSession(engine) as session:
        session.begin()
        session.get(Customer, 1)
        yield session, script


def attempt_mssql(session: LockingSession, where: Where) -> None:
    if where is Where.LOCK:
        session.get_entity(ScriptedOrder, 1, LockOptions.ForUpdate)
    elif where is Where.STATEMENT:
        session.execute(update(ScriptedOrder).values(total=7))
    else:
        session.get_one(ScriptedOrder, 1).total = 7
        session.flush()


@rows("savepoint", [False, True])
@rows(
    "row, where",
    [(row, where) for row in MSSQL for where in row.where],
    ids=lambda one: str(one.number) if isinstance(one, Row) else one.value,
)
def test_mssql(
    scripted: tuple[LockingSession, Script], row: Row, where: Where, savepoint: bool
) -> None:
    session, script = scripted
    inner = session.begin_nested() if savepoint else None
    mark = "FROM shop_order" if where is Where.LOCK else "UPDATE shop_order"
    failure = odbc18(int(row.number))
    script.failures.append((mark, failure))
    with pytest.raises(DocLockError) as caught:
        attempt_mssql(session, where)
    assert type(caught.value) is row.error
    assert caught.value.retryable is row.do.retryable
    assert refuses_mssql(session) is (where is not Where.STATEMENT or row.left is Left.GONE)
    if inner is not None and row.left is not Left.GONE:
        inner.rollback()
        assert not refuses_mssql(session)
    elif inner is not None:
        with suppress(row.error):  # the savepoint no longer exists
            inner.rollback()
        assert refuses_mssql(session)
    session.rollback()
    session.begin()  # as the fixture provides it
    session.get(Customer, 1)
    assert not refuses_mssql(session)


def refuses_mssql(session: LockingSession) -> bool:
    """Return whether the session refuses everything."""
    try:
        session.scalars(select(Customer.name)).all()
    except InvalidRequestError:  # PendingRollbackError is a subclass
        return True
    return False


@rows("row", MSSQL, ids=lambda row: str(row.number))
def test_nothing_is_left_of_a_transaction_that_the_strategy_calls_gone(row: Row) -> None:
    gone = SQLServerLocks.errors[row.number].ends is Ends.TRANSACTION
    assert (row.left is Left.GONE) is gone
