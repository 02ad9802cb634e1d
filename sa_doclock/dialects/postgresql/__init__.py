"""PostgreSQL 12 and later: psycopg, psycopg2, asyncpg, pg8000."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

from sqlalchemy import Connection, DateTime, Dialect, Table, TextClause, text
from sqlalchemy.exc import DBAPIError

from ...errors import (
    DeadlockDetected,
    DocLockError,
    LockNotAvailable,
    LockNotSupported,
    SnapshotConflict,
)
from ...options import LockOptions, base_of
from ..base import (
    READ_COMMITTED,
    REPEATABLE_READ,
    UNMARKED,
    CommitOutcomes,
    IsolationLevels,
    LockStatements,
    LockStrategy,
    NativeCode,
    Pipeline,
    PlainReads,
    Reach,
    ServerClock,
    TransactionLifecycle,
    TransactionStatus,
    note_default_level,
)
from ..compatible_servers import find_server
from ..connection import ask_driver, asked_here, socket_descriptor
from ..error_codes import code_of, raised_within
from ..names import quoted_name, schema_of
from ..table_answers import kept_answer
from ..transactions import SavepointMarks
from .commit_outcome import PostgreSQLCommitOutcomes
from .errors import PostgreSQLErrors
from .limits import HAS_TRANSACTION_TIMEOUT as HAS_TRANSACTION_TIMEOUT
from .limits import PostgreSQLHoldLimit, PostgreSQLWaits, limited_block
from .lockable_rows import check_rows
from .monitoring import PostgreSQLMonitoring
from .named_locks import PostgreSQLNamedLocks

# PQTRANS_IDLE, PQTRANS_ACTIVE ("a command is in progress") and PQTRANS_INERROR of libpq:
# https://www.postgresql.org/docs/current/libpq-status.html#LIBPQ-PQTRANSACTIONSTATUS
_IDLE, _ACTIVE, _IN_ERROR = 0, 1, 3
# Methods of pg8000's connection that send a statement and read its answer.  The driver raises
# errors of its socket, and of unreadable answers, unwrapped.
_STATEMENT = frozenset({"execute_simple", "execute_unnamed", "execute_named"})
_ABORTED = "25P02"  # in_failed_sql_transaction
# "If is_local is true, the new value will only apply during the current transaction", and a rollback
# to a savepoint takes it back:
# https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-ADMIN-SET
# The name is a parameter: a driver keeps the texts that it has sent.
_SET_MARK = text("SELECT pg_catalog.set_config('sa_doclock.mark', CAST(:name AS text), true)")
_MARK = text("SELECT pg_catalog.current_setting('sa_doclock.mark', true)")

# The existing schemas, in order: the table may be in the second one.  pg_temp comes and goes.
_SEARCH_PATH = "SELECT pg_catalog.array_to_string(pg_catalog.current_schemas(false), ', ')"

# The policies for UPDATE also apply to FOR UPDATE and FOR SHARE:
# https://www.postgresql.org/docs/current/sql-createpolicy.html
_ROW_SECURITY = (
    "SELECT relrowsecurity OR relkind = 'v' FROM pg_catalog.pg_class "
    "WHERE oid = pg_catalog.to_regclass(CAST(:name AS text))"
)
_HIDDEN = (
    "the table, or the table of the view, has row-level security: FOR UPDATE and FOR SHARE find only "
    "the rows that its UPDATE policies let this account change"
)


class PostgreSQLIsolation(IsolationLevels):
    levels = {
        LockOptions.ForUpdate: (READ_COMMITTED,),
        LockOptions.SnapshotRead: (REPEATABLE_READ,),
    }
    # "a transaction takes its snapshot as of the start of the first non-transaction-control
    # statement", which is before the wait if that statement locks:
    # https://www.postgresql.org/docs/current/transaction-iso.html#XACT-REPEATABLE-READ
    plain_reads = {
        "READ UNCOMMITTED": PlainReads.PAST_WRITERS,
        READ_COMMITTED: PlainReads.PAST_WRITERS,
        REPEATABLE_READ: PlainReads.PAST_WRITERS | PlainReads.OLDER | PlainReads.CONFLICT,  # 40001
        # The server records reads, and a commit can fail because of one (40001).
        "SERIALIZABLE": PlainReads.OLDER | PlainReads.CONFLICT,
    }


class PostgreSQLStatements(LockStatements):
    # "If applied to a view or sub-query, it affects all tables used in the view or sub-query.
    # However, these clauses do not apply to WITH queries referenced by the primary query."
    # https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
    reach = Reach.ONE_TABLE | Reach.SUBQUERIES
    # READ COMMITTED re-checks the row version for which it waited.  If the row was deleted and
    # inserted again meanwhile, only a new statement's snapshot shows the new row.
    retries_missing_rows = True


class PostgreSQLStatus(TransactionStatus):
    def in_transaction(self, connection: Connection, cursor: Any = None) -> bool | None:
        pooled = connection.connection
        # After a COMMIT that the program sent as text, asyncpg and psycopg2 send no other BEGIN.
        # For psycopg: five times as fast as its "info", and "driver_connection" takes three calls.
        libpq: Any = getattr(pooled.dbapi_connection, "pgconn", None)
        if libpq is None:
            driver: Any = pooled.driver_connection
            # psycopg with asyncio; psycopg2
            libpq = getattr(driver, "pgconn", None) or getattr(driver, "info", None)
        if libpq is not None:
            status: int = libpq.transaction_status
            return status != _IDLE
        if not hasattr(driver, "is_in_transaction"):
            return None  # pg8000
        return None if driver.is_closed() else bool(driver.is_in_transaction())  # asyncpg

    def is_aborted(self, connection: Connection) -> bool | None:
        # psycopg and psycopg2; asyncpg and pg8000 do not report it
        info: Any = getattr(connection.connection.driver_connection, "info", None)
        status = getattr(info, "transaction_status", None)
        return None if status is None else int(status) == _IN_ERROR


class PostgreSQLLifecycle(TransactionLifecycle):
    kept_by_prepare = frozenset({LockOptions.ForUpdate, LockOptions.SharedRead})

    def has_unread_answer(self, connection: Connection, error: BaseException) -> bool:
        # If the server resets the socket, psycopg may raise "connection socket closed" while its
        # "closed", which SQLAlchemy checks, stays false.
        libpq: Any = getattr(connection.connection.driver_connection, "pgconn", None)
        if libpq is None:
            return raised_within(connection, error, _STATEMENT)
        if libpq.pipeline_status:  # other statements may be in progress
            return False
        return int(libpq.transaction_status) == _ACTIVE

    def descriptor(self, driver_connection: Any) -> int | None:
        # no public name in asyncpg and pg8000
        private = socket_descriptor(driver_connection, "_transport", "_usock")
        return super().descriptor(driver_connection) if private is None else private


class PostgreSQLMarks(SavepointMarks):
    """Settings of the transaction: a savepoint would cost the server a subtransaction."""

    schema_setter = "set_config"  # SELECT set_config('search_path', ...)

    def __init__(self) -> None:
        """No savepoint marks the transaction, so none can be missing."""

    def set_mark(self, connection: Connection, name: str) -> bool:
        return _answer(connection, _SET_MARK, name=name) is not UNMARKED

    def take_mark(self, connection: Connection, name: str) -> bool:
        found = _answer(connection, _MARK)
        return found is UNMARKED or found == name  # an aborted transaction cannot change anything

    def current_schema(self, connection: Connection) -> str | None:
        if PostgreSQLLocks.status.is_aborted(connection):
            return None
        ((schemas,),) = ask_driver(connection, _SEARCH_PATH)
        return str(schemas)


class PostgreSQLLocks(LockStrategy):
    name = "postgresql"
    monitoring = PostgreSQLMonitoring()
    errors = PostgreSQLErrors()
    isolation = PostgreSQLIsolation()
    statements = PostgreSQLStatements()
    status = PostgreSQLStatus()
    lifecycle = PostgreSQLLifecycle()
    marks = PostgreSQLMarks()
    commit_outcomes: CommitOutcomes | None = PostgreSQLCommitOutcomes()
    waits = PostgreSQLWaits()
    hold_limit = PostgreSQLHoldLimit()
    named_locks = PostgreSQLNamedLocks(waits)
    # "clock_timestamp() returns the actual current time, and therefore its value changes even within
    # a single SQL command", while now() is "the start time of the current transaction":
    # https://www.postgresql.org/docs/current/functions-datetime.html#FUNCTIONS-DATETIME-CURRENT
    clock = ServerClock("clock_timestamp() AT TIME ZONE 'UTC'", DateTime)

    _pipeline: Callable[[Connection], Pipeline] | None = None

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        # Several statements in one round trip, with libpq 14 or later:
        # https://www.psycopg.org/psycopg3/docs/advanced/pipeline.html
        psycopg: Any = dialect.loaded_dbapi if dialect.driver == "psycopg" else None
        if psycopg is not None and psycopg.Pipeline.is_supported():
            # These import psycopg.
            from .deferred_writes import PipelinedHoldLimit, PsycopgPipeline  # noqa: PLC0415
            from .pipelined_lock import PipelinedWaits  # noqa: PLC0415

            self._pipeline = PsycopgPipeline
            self.waits, self.hold_limit = PipelinedWaits(), PipelinedHoldLimit()
            self.named_locks = PostgreSQLNamedLocks(self.waits)

    def pipeline(self, connection: Connection) -> Pipeline | None:
        return None if self._pipeline is None else self._pipeline(connection)

    def asking(self, connection: Connection) -> AbstractContextManager[Connection]:
        # pg8000 does not report it.  In the program's transaction, a question's snapshot would
        # precede the program's next statement, which may also be SET TRANSACTION.
        if self.status.in_transaction(connection) is False:
            return asked_here(connection, _rolled_back(connection))
        return super().asking(connection)

    def note_server(self, connection: Connection) -> None:
        note_default_level(connection)
        ((version,),) = ask_driver(connection, "SELECT pg_catalog.version()")
        self.compatible = find_server("postgresql", str(version), connection.engine.url.host)
        if self.compatible is not None:
            self.commit_outcomes = None

    def check_table(
        self,
        connection: Connection,
        table: Table,
        lock: LockOptions | None = None,
        seconds: float | None = None,
        *,
        adopted: bool = False,
    ) -> None:
        if self.compatible is not None:
            return
        question = schema_of(connection, table), table.name
        try:
            kept_answer(
                *(self.findings, connection, question),
                lambda: check_rows(connection, quoted_name(connection, table)),
            )
        except DBAPIError as error:
            meaning = self.errors[code_of(self.errors, error)]
            if meaning.in_lock is not LockNotSupported:
                raise
            raise LockNotSupported(meaning.why) from error

    def hides_rows(self, connection: Connection, table: Table) -> str | None:
        name = quoted_name(connection, table)
        hidden = kept_answer(
            *(connection.info, connection, (_ROW_SECURITY, name)),
            lambda: any(on for (on,) in ask_driver(connection, _ROW_SECURITY, name=name)),
        )
        return _HIDDEN if hidden else None

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        if base_of(lock) is LockOptions.SnapshotRead:
            # Not the postgresql_readonly option: when the connection returns, that is reset to READ
            # WRITE, whatever the connection's default was.
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    @contextmanager
    def inserting(self, connection: Connection, key: str, seconds: float | None) -> Iterator[bool]:
        # The INSERT waits for another transaction to end, within lock_timeout, as a lock does.
        with nullcontext() if seconds is None else limited_block(connection, seconds):
            yield False


@contextmanager
def _rolled_back(connection: Connection) -> Iterator[None]:
    """Roll back at the end; SQLAlchemy does not know of the driver's transaction."""
    driver_error: Any = connection.dialect.loaded_dbapi.Error
    try:
        yield
    finally:
        if not connection.invalidated:
            with suppress(driver_error):  # if it is lost, the program's next statement reports it
                connection.connection.rollback()


def _answer(connection: Connection, question: TextClause, **parameters: str) -> object:
    """Return the server's answer; UNMARKED: the transaction is aborted."""
    if PostgreSQLLocks.status.is_aborted(connection):
        return UNMARKED  # a later successful statement proves that it or its savepoint ended
    try:
        # By SQLAlchemy: if the server has ended the transaction, only this answer says why.
        answer: object = connection.execute(question, parameters).scalar_one()
    except DBAPIError as error:
        if code_of(PostgreSQLLocks.errors, error) != _ABORTED:
            raise
        return UNMARKED
    return answer
