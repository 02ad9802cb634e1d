"""The base class of all dialects: the public import path for other packages.

All that a dialect of another package needs is here, in ``sa_doclock`` and in ``sa_doclock.errors``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Connection, Table
from sqlalchemy.engine import Dialect

from ..errors import LockNotSupported, WrongIsolation
from ..keys import Identity
from ..options import LockOptions, base_of, milliseconds
from ..pool import CallFunction, ExecuteStatement, on_return, withdraw
from .clock import ServerClock
from .cluster import Cluster
from .commit_outcome import CommitOutcomes, Outcome
from .compatible_servers import FoundServer
from .connection import (
    AUTOCOMMIT,
    ask_driver,
    asked_here,
    connection_setting,
    other_connection,
    rewritten_statements,
)
from .error_codes import Ends, ErrorCode, ErrorCodes, EveryError, Limit, MetError, NativeCode
from .hold_limit import ServerHoldLimit
from .isolation import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SNAPSHOT,
    IsolationLevels,
    PlainReads,
    levels_for,
    note_default_level,
)
from .lock_statements import (
    Locked,
    LockStatements,
    LockText,
    MaxParameters,
    Reach,
    is_in_index,
    parameters_for_keys,
    read_beside,
)
from .monitoring import LockMonitoring, connections_by_id, elapsed_seconds
from .named_locks import NamedLocks, short_name
from .names import quoted_name, schema_of
from .pipelining import Pipeline, Read
from .transaction_lifecycle import TransactionLifecycle
from .transaction_marks import UNMARKED, TransactionMarks
from .transaction_status import TransactionStatus
from .waits import LockWaits

if TYPE_CHECKING:
    from ..wait_info import ACTIVE, IDLE, LockConnection, Wait

__all__ = [
    "ACTIVE",
    "AUTOCOMMIT",
    "IDLE",
    "READ_COMMITTED",
    "REPEATABLE_READ",
    "SNAPSHOT",
    "UNMARKED",
    "CallFunction",
    "Cluster",
    "CommitOutcomes",
    "Ends",
    "ErrorCode",
    "ErrorCodes",
    "EveryError",
    "ExecuteStatement",
    "Identity",
    "IsolationLevels",
    "Limit",
    "LockConnection",
    "LockMonitoring",
    "LockStatements",
    "LockStrategy",
    "LockText",
    "LockWaits",
    "Locked",
    "MaxParameters",
    "MetError",
    "NamedLocks",
    "NativeCode",
    "Outcome",
    "Pipeline",
    "PlainReads",
    "Reach",
    "Read",
    "ServerClock",
    "ServerHoldLimit",
    "TransactionLifecycle",
    "TransactionMarks",
    "TransactionStatus",
    "Wait",
    "ask_driver",
    "asked_here",
    "base_of",
    "connection_setting",
    "connections_by_id",
    "elapsed_seconds",
    "is_in_index",
    "levels_for",
    "milliseconds",
    "note_default_level",
    "on_return",
    "parameters_for_keys",
    "quoted_name",
    "read_beside",
    "rewritten_statements",
    "schema_of",
    "short_name",
    "withdraw",
]


def __getattr__(name: str) -> Any:
    if name in {"ACTIVE", "IDLE", "LockConnection", "Wait"}:  # a strategy's monitoring needs them
        return getattr(import_module("sa_doclock.wait_info"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class LockStrategy:
    """The dialect of one database: its locks, errors and connections.  Subclass it for a new one.

    A subclass must give ``name``, ``isolation`` and ``errors``; all else has a default.  An attribute
    that is an object has one subject, and is replaced as a whole: by the class, or for an engine
    whose server is different.  The built-in classes replace some for an engine, also those that a
    subclass of theirs has given.  ``statements.texts`` are always those of the class.

    There is one strategy per SQLAlchemy dialect object, that is per engine, so it may remember the
    answers of its server.  Facts are class attributes; a method computes the rest.  A
    strategy knows SQL and the driver, never a Session.
    """

    name: ClassVar[str]
    """SQLAlchemy's name of the dialect."""

    isolation: IsolationLevels
    """The isolation levels that protect a document."""

    errors: ErrorCodes
    """The error numbers of the server."""

    statements: LockStatements = LockStatements()
    """The SELECTs that lock rows."""

    waits: LockWaits = LockWaits()
    """The limits of the waits for locks of rows."""

    status: TransactionStatus = TransactionStatus()
    """The driver's word about its transaction."""

    lifecycle: TransactionLifecycle = TransactionLifecycle()
    """The steps at the begin, the savepoints and the end of a transaction."""

    marks: TransactionMarks | None = None
    """The marks of transactions; None: the database has none."""

    commit_outcomes: CommitOutcomes | None = None
    """The outcome of a COMMIT whose answer was lost; None: the server cannot be asked for it."""

    named_locks: NamedLocks | None = None
    """The locks of names; None: nothing is known of them."""

    hold_limit: ServerHoldLimit | None = None
    """The server's limit for an idle transaction; None: the clock of the client alone limits it."""

    monitoring: ClassVar[LockMonitoring | None] = None
    """The holders and waiters of locks; None: there is no lock_waits(), and no ``diagnose=True``."""

    clock: ClassVar[ServerClock | None] = None
    """The clock that check-outs go by; None: nothing is known of it, and there are no check-outs."""

    limits_by_type: ClassVar[bool] = True
    """A column keeps only values of its type and length."""

    cluster: Cluster | None = None
    """The cluster that the server is a node of; None: of none; set by ``note_server()``."""

    compatible: FoundServer | None = None
    """The product that answers in place of the one that the dialect is for; set by ``note_server()``."""

    findings: dict[Any, Any]
    """Facts about this engine that other packages found out once, by keys of their own."""

    def __init__(self, dialect: Dialect) -> None:
        # Do not keep the dialect here: the strategy lives as long as its dialect.
        self.findings = {}

    def asking(self, connection: Connection) -> AbstractContextManager[Connection]:
        """Return a block with the connection for a question about the server or a table.

        All questions that the library asks by itself are asked in such a block, so that the program
        finds this connection and its transaction as if nothing had been sent.  Here they go over a
        connection of their own.  Return ``asked_here()`` where a question by ``ask_driver()`` on this
        very connection leaves nothing behind: no transaction that was not there, none ended, no
        snapshot, no setting of the next transaction used up.

        :raises LockNotSupported: another connection is needed for it, and cannot be made.
        """
        return other_connection(connection)

    def note_server(self, connection: Connection) -> None:
        """Remember the settings of the server; called once, with a connection as of ``asking()``.

        Call ``note_default_level()``, unless the level of new transactions is always the same.
        """

    def pipeline(self, connection: Connection) -> Pipeline | None:
        """Return what sends several statements of this connection in one round trip; None: the driver cannot."""
        return None

    def check_autocommit(self, connection: Connection) -> None:
        """Raise LockNotSupported if every statement is a transaction of its own."""
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise LockNotSupported(AUTOCOMMIT)

    def check_support(self, lock: LockOptions) -> None:
        """Raise LockNotSupported if this database or version cannot give that lock.

        A lock that ``compatible`` denies is refused before this call.
        """

    def check_table(
        self,
        connection: Connection,
        table: Table,
        lock: LockOptions | None = None,
        seconds: float | None = None,
        *,
        adopted: bool = False,
    ) -> None:
        """Raise LockNotSupported if rows of this table cannot be locked.

        Where the lock is the transaction's, it takes what this lock needs for the table beside that.

        :param lock: the lock that follows; None: none does.
        :param adopted: it is that of a ``with_for_update()``, which is executed next.
        """

    def hides_rows(self, connection: Connection, table: Table) -> str | None:
        """Return why rows of this table that can be read may not be found by a lock; None: all are.

        Asked where a lock by key has found no row.
        """
        return None

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        """Send the first statement of a transaction opened for this lock."""

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
        :param header: the table whose rows are to be locked; None for a named lock.
        :returns: whether the database had no transaction yet, and this lock has opened it.
        :raises WrongIsolation: the transaction cannot protect a document any more.
        """
        wanted, opened = base_of(lock), base_of(opened_for or LockOptions.None_)
        snapshot = LockOptions.SnapshotRead
        if wanted is snapshot and opened is not snapshot:
            raise WrongIsolation(
                "a snapshot starts with its transaction, and this transaction is already open. "
                "Read the snapshot first, or in a session of its own"
            )
        if opened is snapshot and wanted is not snapshot:
            raise WrongIsolation(
                "the transaction was opened read-only by a SnapshotRead. "
                "End it before you lock, or lock in a session of its own"
            )
        levels = levels_for(self.isolation, lock)
        if levels and level not in levels:
            raise WrongIsolation(
                f"the transaction is open at {level}, where a read after the lock can return rows from "
                "before it. Take the lock before any other statement of the transaction, or make the "
                f'engine with isolation_level="{levels[0]}"'
            )
        return False

    def inserting(
        self, connection: Connection, key: str, seconds: float | None
    ) -> AbstractContextManager[bool]:
        """Return a block in which a row is inserted that others may insert at the same time.

        It gives whether no other is in a block with this key.  Where two INSERTs of one row can
        deadlock, it lets in one at a time; the block must not wait for a lock then.

        :param key: names the row, the same for all who insert it.
        :param seconds: the limit of each wait for another's INSERT, where the server has one; None:
            as it is configured.
        :raises LockNotAvailable: another was in the block for that long.
        """
        return nullcontext(False)
