"""What a database must answer before a document can be locked on it.

A strategy is one object per SQLAlchemy dialect object, that is per engine, so that it
may remember what it has asked this server.  Facts are class attributes; what they
leave open is a method.  A strategy knows SQL and the driver, never a Session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Protocol

from sqlalchemy import Connection, Select, Table, event
from sqlalchemy.engine import Dialect

from ..errors import DocLockError, LockFailed, LockNotSupported, WrongIsolation
from ..lock_info import LockConnection, Wait
from ..options import LockOptions, base_of
from .schema import translated_schema

NativeCode = int | str

READ_COMMITTED = "READ COMMITTED"
REPEATABLE_READ = "REPEATABLE READ"
SNAPSHOT = "SNAPSHOT"
AUTOCOMMIT = (
    "the connection is in AUTOCOMMIT, where a lock ends with its statement; "
    "use an engine or session with a transactional isolation level"
)


Read = tuple[Select[Any], Mapping[str, Any]]
"""A statement and its parameters."""


class Pipeline(Protocol):
    """What sends several statements over one connection in one round trip."""

    def locking(
        self, seconds: float | None, reads: Callable[[], Iterable[Read]]
    ) -> AbstractContextManager[None]:
        """Take a lock in this block; BEGIN, its limit and these reads travel with it.

        The reads come after the lock.  Who executes one of them next, in this block, gets what
        came; any other statement makes that void.
        """

    def keep_writes(self, may_commit: Callable[[], bool]) -> None:
        """From now on the writes of a flush wait for COMMIT, and travel with it.

        Whatever else is executed is executed after those that wait.

        :param may_commit: asked when COMMIT is due: whether it may travel with them.
        """

    def send_writes(self) -> None:
        """Send those that wait.  :raises StaleDataError: one has not found its row."""

    def forget_writes(self) -> None:
        """No write waits any more; those that did are not sent."""

    def pause(self, *, paused: bool) -> None:
        """Keep no writes for now."""


class LockStrategy:
    """How one database locks a header row.  Subclass it for a new database."""

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""

    levels: ClassVar[Mapping[LockOptions, tuple[str, ...]]]
    """Per base lock, the isolation levels that protect a document: the first is set for a
    new transaction, any of them will do in one that is open.  Empty: there is no choice."""

    failures: ClassVar[Mapping[NativeCode, type[DocLockError]]]
    """What the server's own error numbers mean, whatever statement met them."""

    refusals: ClassVar[Mapping[NativeCode, tuple[type[DocLockError], str]]] = {}
    """What they mean only while a lock is being taken, with the sentence that says why."""

    rolls_back_transaction: frozenset[NativeCode] = frozenset()
    """Errors after which the server has no transaction: no statement may follow them."""

    requires_rollback: frozenset[NativeCode] = frozenset()
    """Errors, of whatever statement, after which only a rollback makes sense: where the
    transaction is gone, or where its COMMIT would silently be a ROLLBACK."""

    aborts_on_error: ClassVar[bool] = False
    """After an error of any statement the transaction can only be rolled back, and its COMMIT
    is a silent ROLLBACK."""

    server_limits: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a wait that the server's own setting has ended, not ``lock_timeout``."""

    statement_limits: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a statement that took too long, whatever it has waited for."""

    ends_connection: ClassVar[frozenset[NativeCode]] = frozenset()
    """Of ``failures``, those with which the server may have closed the connection too."""

    rollback_noise: ClassVar[frozenset[NativeCode]] = frozenset()
    """Errors of a ROLLBACK that says only that the transaction was gone already."""

    hints: ClassVar[Mapping[LockOptions, str]] = {}
    """Table hints, where SQLAlchemy's ``with_for_update()`` does not say it."""

    by_keys_hint: ClassVar[str | None] = None
    """A table hint without which a SELECT of many keys may read, and lock, other rows too."""

    asks_server: ClassVar[bool] = True
    """The answers depend on the server's version or default isolation level."""

    max_parameters: ClassVar[int] = 32_000
    """How many keys one statement can have: get_entities() locks more of them in chunks."""

    retries_missing_rows: ClassVar[bool] = False
    """A row that was replaced during the wait is not found by the statement that waited."""

    supports_monitoring: ClassVar[bool] = False
    """There is a server that tells who holds a lock, and who waits for it."""

    queued: ClassVar[frozenset[LockOptions]] = frozenset(
        {LockOptions.ForUpdate, LockOptions.SharedRead}
    )
    """The locks that wait for another holder, in a transaction that is opened for them."""

    locks_database: ClassVar[bool] = False
    """Every lock is one on the whole database, and who waits for it asks again and again."""

    reports_idle: ClassVar[bool] = False
    """There are drivers that send a ROLLBACK also where nothing is open, and know that."""

    privilege_errors: ClassVar[Mapping[NativeCode, str]] = {}
    """Errors of an account that may not be told so, with the privilege that it needs."""

    cluster: str | None = None
    """What the server is a node of, where other nodes take writes too and know nothing of the
    locks of this one; found out by ``note_server()``."""

    autocommit_by_default: bool = False
    """The engine was made with ``isolation_level="AUTOCOMMIT"``."""

    def __init__(self, dialect: Dialect) -> None:
        # Not the dialect itself: the strategy is kept for as long as the dialect lives.
        self.server_version: tuple[Any, ...] | None = dialect.server_version_info

    def note_server(self, connection: Connection) -> None:
        """Remember how the server is set up."""

    def note_default(self, connection: Connection) -> None:
        """Remember how the engine makes its connections."""
        self.autocommit_by_default = self._in_autocommit(connection.connection.dbapi_connection)

    def locks_one_table_of_join(self) -> bool:
        """Whether ``FOR UPDATE OF header`` leaves the other tables of a join alone."""
        return True

    def levels_for(self, lock: LockOptions) -> tuple[str, ...]:
        return self.levels.get(base_of(lock), ())

    def row_lock(self, lock: LockOptions, level: str | None) -> LockOptions:
        """The lock that the SELECT must carry, in a transaction at this isolation level."""
        return (
            lock
            if base_of(lock) in (LockOptions.ForUpdate, LockOptions.SharedRead)
            else base_of(lock)
        )

    def check_support(self, lock: LockOptions) -> None:
        """:raises LockNotSupported: this database or version cannot give that lock."""

    def check_table(self, connection: Connection, table: Table) -> None:
        """:raises LockNotSupported: rows of this table cannot be locked."""

    def check_autocommit(self, connection: Connection) -> None:
        """:raises LockNotSupported: every statement is a transaction of its own."""
        if self._in_autocommit(connection.connection.dbapi_connection):
            raise LockNotSupported(AUTOCOMMIT)

    def _in_autocommit(self, dbapi_connection: Any) -> bool:
        return bool(getattr(dbapi_connection, "autocommit", False))

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        """Send what must be the first statement of a transaction opened for this lock."""

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        level: str | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> bool:
        """Take this lock in a transaction that is open already, at this isolation level.

        :param opened_for: the lock that the transaction was opened for; None where it was
            opened for something else.
        :param header: whose rows are to be locked; None for a named lock.
        :returns: whether the database had no transaction yet, and this lock has opened it.
        :raises WrongIsolation: it cannot protect a document any more.
        """
        wanted, opened = base_of(lock), base_of(opened_for or LockOptions.None_)
        snapshot = LockOptions.SnapshotRead
        if wanted is snapshot and opened is not snapshot:
            raise WrongIsolation(
                "a snapshot starts with its transaction, and this one is open already; "
                "read the snapshot first, or in a session of its own"
            )
        if opened is snapshot and wanted is not snapshot:
            raise WrongIsolation(
                "the transaction was opened read-only by a SnapshotRead; "
                "end it before you lock, or lock in a session of its own"
            )
        levels = self.levels_for(lock)
        if levels and level not in levels:
            raise WrongIsolation(
                f"the transaction is open at {level}, where what is read after the grant can be "
                f"older than the lock; take the lock before any other statement of the "
                f'transaction, or make the engine with isolation_level="{levels[0]}"'
            )
        return False

    def take_key(
        self, connection: Connection, key: str, lock: LockOptions, seconds: float | None
    ) -> type[LockFailed] | None:
        """Take a named lock, held to the end of the transaction that the connection is in.

        :param lock: ForUpdate, or SharedRead, for which an exclusive one may stand in; NoWait
            comes as a modifier, with ``seconds`` None.
        :returns: None when it is held; how it has failed, where the server says so by value.
        :raises LockNotSupported: there are none.
        """
        raise LockNotSupported(f"nothing is known of named locks on {self.name}")

    def lower_deadlock_priority(self, connection: Connection) -> None:
        """Rather end this transaction than another by a deadlock, where the server can choose."""

    def before_savepoint(self, connection: Connection) -> None:
        """Send what a SAVEPOINT needs in front of it."""

    def before_rollback(self, connection: Connection) -> None:
        """Take the error that a ROLLBACK would meet; asked on a node of a cluster alone."""

    def is_aborted(self, connection: Connection) -> bool | None:
        """Whether an error has aborted the transaction; None where the driver cannot tell."""
        return None if self.aborts_on_error else False

    def commit_failed(self, connection: Connection) -> None:
        """End what a COMMIT that failed has left open; SQLAlchemy takes it for ended."""

    def interrupted(self, connection: Connection, cursor: Any) -> None:
        """End what closing the connection, which follows, would leave open."""

    def is_idle(self, dbapi_connection: Any) -> bool:
        """Whether, after a COMMIT or ROLLBACK, the server has said that no transaction is open.

        False: it has not, or the driver does not tell.
        """
        return False

    def waiting(
        self, connection: Connection, lock: LockOptions, seconds: float | None
    ) -> AbstractContextManager[None]:
        """Limit the waits of the block, and put the old limit back whatever happens."""
        return nullcontext()

    def pipeline(self, connection: Connection) -> Pipeline | None:
        """What sends statements together; None where the driver cannot."""
        return None

    def timed(self, statement: Select[Any], lock: LockOptions, seconds: float) -> Select[Any]:
        """The statement with the limit in its text, where SQLAlchemy can write it there."""
        return statement

    def refusal(
        self, code: NativeCode | None, orig: BaseException, *, by_key: bool
    ) -> tuple[type[DocLockError], str] | None:
        """What an error means while a lock is being taken, and the sentence that says why.

        :param by_key: the statement finds its rows by primary key, and is not slow by itself.
        """
        return self.refusals.get(code) if code is not None else None

    def native_code(self, orig: BaseException) -> NativeCode | None:
        """The server's own error number in a driver's exception."""
        raise TypeError(f"{type(self).__name__} must read the error numbers of its drivers")

    def longest_wait(self, connection: Connection) -> float | None:
        """Seconds after which the server ends a wait without a lock_timeout; None: never."""
        return None

    # Who holds it: asked over a connection of its own, on which nothing may wait.

    def connection_id(self, connection: Connection) -> int | None:
        """What the server calls this connection; past SQLAlchemy, whose session refuses by now."""
        return None

    def holders(
        self,
        connection: Connection,
        header: Table,
        keys: Sequence[tuple[Any, ...]],
        *,
        shared: bool,
    ) -> Mapping[int, bool]:
        """The connections that hold these rows, or else those that may hold them.

        :param keys: none where they are not known.
        :param shared: whether a shared lock was asked for, which other readers do not keep out.
        :returns: by their ids, whether it is certain.
        """
        return {}

    def waits(self, connection: Connection) -> Iterable[Wait]:
        """Who waits for a lock, and for whom."""
        return ()

    def parties(self, connection: Connection, ids: Collection[int]) -> Mapping[int, LockConnection]:
        """What the server tells of these connections."""
        return {}


def schema_of(connection: Connection, table: Table) -> str | None:
    """The table's schema, after ``schema_translate_map``."""
    return translated_schema(table, connection.get_execution_options())


def seconds_of(found: Any) -> float | None:
    """A time that has passed, by a clock that may have been set back meanwhile."""
    return None if found is None else max(0.0, float(found))


@contextmanager
def sent_as(
    connection: Connection, rewrite: Callable[[str, Any], str], *locking: str
) -> Iterator[None]:
    """In this block, statements with one of these words in them are sent as rewritten.

    For what stands in front of a SELECT, where SQLAlchemy writes nothing.  The listener is the
    connection's own and goes with the block: no other statement pays for it.

    :param rewrite: is given the text and the parameters as the driver will get them.
    """

    def before_cursor_execute(
        _connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any
    ) -> tuple[str, Any]:
        if any(words in statement for words in locking):
            statement = rewrite(statement, parameters)
        return statement, parameters

    event.listen(connection, "before_cursor_execute", before_cursor_execute, retval=True)
    try:
        yield
    finally:
        event.remove(connection, "before_cursor_execute", before_cursor_execute)
