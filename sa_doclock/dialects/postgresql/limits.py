"""The limits of a lock: its lock_timeout, for a few rows also the statement_timeout, and the hold limit.

PostgreSQL waits for each row, and behind another waiter it waits twice: for its turn, and for the
row.  A lock of a few rows by key takes time only while it waits, so a limit of the whole statement
limits the sum.

The limits outlast the statement, and are restored after it.  Settings of our own keep the old
values on the server, which saves a question; like the limits, they end with the transaction or
savepoint. The limits of a transaction that holds locks apply to this transaction only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple

from sqlalchemy import Connection, TextClause, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ...options import LockOptions, milliseconds
from ..base import LockWaits, ServerHoldLimit
from ..waits import SECONDS_AFTER_GRANT, SECONDS_WITHOUT_WAIT

# set_config(.., true) is SET LOCAL, which takes no parameter.
_WRITE: Final = (
    "SELECT set_config('doclock.lock_timeout', current_setting('lock_timeout'), true), "
    "set_config('lock_timeout', {lock}, true)"
)
_RESTORE: Final = "SELECT set_config('lock_timeout', current_setting('doclock.lock_timeout'), true)"
# A shorter statement_timeout of the user's stays.  0 means none.
_WRITE_BOTH: Final = (
    f"{_WRITE}, "
    "set_config('doclock.statement_timeout', current_setting('statement_timeout'), true), "
    "set_config('statement_timeout', CASE WHEN current_setting('statement_timeout')::interval "
    "BETWEEN '0.001 s' AND {interval} THEN current_setting('statement_timeout') "
    "ELSE {whole} END, true)"
)
_RESTORE_BOTH: Final = (
    f"{_RESTORE}, "
    "set_config('statement_timeout', current_setting('doclock.statement_timeout'), true)"
)


_AFTER_GRANT: Final = milliseconds(SECONDS_AFTER_GRANT)
_WITHOUT_WAIT: Final = milliseconds(SECONDS_WITHOUT_WAIT)


class _Statements(NamedTuple):
    write: str
    """With the placeholders of psycopg 3."""

    restore: str
    write_clause: TextClause
    restore_clause: TextClause


def _statements(write: str, restore: str) -> _Statements:
    # With SQLAlchemy, a parameter that occurs twice is sent once, with one type.
    interval = "CAST(CAST(:whole AS text) AS interval)"
    clause = write.format(lock=":lock", interval=interval, whole=":whole")
    write = write.format(lock="%s", interval="%s", whole="%s")
    return _Statements(write, restore, text(clause), text(restore))


_OF_LOCK: Final = _statements(_WRITE, _RESTORE)
_OF_BOTH: Final = _statements(_WRITE_BOTH, _RESTORE_BOTH)


class LockLimit(NamedTuple):
    """The statements around a lock that limit its waits, and the limits in the server's format."""

    statements: _Statements
    lock: str
    whole: str
    parameters: tuple[str, ...]
    """The parameters of ``statements.write``."""

    def as_sent(self) -> tuple[str, str]:
        """Return the statement before the lock, with its parameters inlined, and the one after it."""
        quoted = tuple(f"'{value}'" for value in self.parameters)
        return self.statements.write % quoted, self.statements.restore


# Threads: a cached pure function.
@lru_cache(maxsize=16)  # a program has few limits
def lock_limit(seconds: float, *, few_rows: bool) -> LockLimit:
    """Return the limit of one locking statement.

    :param few_rows: it locks a few rows by their keys, so that the whole statement is limited.
    """
    limit = milliseconds(seconds)
    lock, whole = f"{limit}ms", f"{max(limit + _AFTER_GRANT, _WITHOUT_WAIT)}ms"
    if few_rows:
        return LockLimit(_OF_BOTH, lock, whole, (lock, whole, whole))
    return LockLimit(_OF_LOCK, lock, whole, (lock,))


def waits_for_lock(statement: str) -> bool:
    """Return whether this is the text of a statement that waits for a lock."""
    # any() costs three times as much, and each statement in a lock's block comes here.
    return (
        "FOR UPDATE" in statement
        or "FOR NO KEY UPDATE" in statement
        or "FOR SHARE" in statement
        or "advisory_xact_lock" in statement
    )


@contextmanager
def limited_block(connection: Connection, seconds: float) -> Iterator[None]:
    """Limit each wait of this block, whatever its statements are.

    A rollback to a savepoint must have undone an error before it leaves the block.
    """
    limit = lock_limit(seconds, few_rows=False)
    connection.execute(limit.statements.write_clause, {"lock": limit.lock})
    try:
        yield
    except BaseException:
        with suppress(SQLAlchemyError):  # the transaction is gone, and the limit with it
            connection.execute(limit.statements.restore_clause)
        raise
    connection.execute(limit.statements.restore_clause)


@contextmanager
def limited_locks(connection: Connection, seconds: float, *, few_rows: bool) -> Iterator[None]:
    """Limit each lock of this block by a statement before it and another after it.

    For a driver that cannot send several statements in one round trip.
    """
    limit = lock_limit(seconds, few_rows=few_rows)
    statements, values = limit.statements, {"lock": limit.lock, "whole": limit.whole}
    limited = False

    def before_cursor_execute(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        nonlocal limited
        if not limited and waits_for_lock(statement):
            connection.execute(statements.write_clause, values)
            limited = True

    def after_cursor_execute(*_: Any) -> None:
        if limited and not connection.get_execution_options().get("stream_results"):
            restore()

    def restore() -> None:
        nonlocal limited
        if limited:
            limited = False
            connection.execute(statements.restore_clause)

    event.listen(connection, "before_cursor_execute", before_cursor_execute)
    event.listen(connection, "after_cursor_execute", after_cursor_execute)
    try:
        yield
    except DBAPIError:
        # The server accepts only a rollback now, which restores the old values.
        raise
    except Exception:
        # A listener's error, unknown to the server; or ours, which replaces the server's.
        with suppress(DBAPIError):
            restore()
        raise
    else:
        restore()  # rows of a server-side cursor are locked as they are fetched
    finally:
        event.remove(connection, "before_cursor_execute", before_cursor_execute)
        event.remove(connection, "after_cursor_execute", after_cursor_execute)


class PostgreSQLWaits(LockWaits):
    """The waits of PostgreSQL, limited by settings around the lock."""

    limiting: ClassVar[Callable[..., AbstractContextManager[None]]] = staticmethod(limited_locks)
    """Returns the block of a lock; takes a connection, seconds and ``few_rows``."""

    def limited(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        *,
        few_rows: bool = False,
    ) -> AbstractContextManager[None]:
        if seconds is None:
            return nullcontext()
        return self.limiting(connection, seconds, few_rows=few_rows)

    def longest(self, connection: Connection) -> float | None:
        # in milliseconds; 0: no limit
        limit = connection.exec_driver_sql(
            "SELECT setting FROM pg_settings WHERE name = 'lock_timeout'"
        ).scalar_one()
        return int(limit) / 1000 or None


_IDLE: Final = "idle_in_transaction_session_timeout"
_WHOLE: Final = "transaction_timeout"
HAS_TRANSACTION_TIMEOUT: Final = (17,)  # https://www.postgresql.org/docs/release/17.0/

# set_config(.., true) is SET LOCAL.  A shorter limit of the server's stays; 0 means none.
_LIMITED: Final = (
    "set_config('{name}', CASE WHEN current_setting('{name}')::interval "
    "BETWEEN '0.001 s' AND '{limit}ms' THEN current_setting('{name}') ELSE '{limit}ms' END, true)"
)


def after_lock(connection: Connection, seconds: float) -> str:
    """Return the statement that is sent right after the lock, in the same round trip.

    The server executes it when the lock is granted.
    """
    version = connection.dialect.server_version_info
    if version is None or version < HAS_TRANSACTION_TIMEOUT:
        return _select(seconds, _IDLE)
    return _select(seconds, _IDLE, _WHOLE)


def _select(seconds: float, *names: str) -> str:
    limit = milliseconds(seconds)
    return f"SELECT {', '.join(_LIMITED.format(name=name, limit=limit) for name in names)}"


class PostgreSQLHoldLimit(ServerHoldLimit):
    """The limits of a transaction that holds locks."""

    def limit(self, connection: Connection, seconds: float) -> None:
        # Sent before the lock: transaction_timeout would count the wait for it.
        connection.exec_driver_sql(_select(seconds, _IDLE))
