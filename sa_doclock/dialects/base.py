"""The base class of all dialects: the public import path for other packages.

Everything that a dialect of another package needs is here, in ``sa_doclock`` and in
``sa_doclock.errors``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from sqlalchemy import Connection, Select, Table
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

from ..errors import LockNotSupported
from ..keys import Identity
from ..options import LockOptions, base_of, milliseconds
from ..pool import CallFunction, ExecuteStatement, on_return, withdraw
from .cluster import Cluster
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
    lock_in_select,
    parameters_for_keys,
    read_beside,
)
from .monitoring import LockMonitoring
from .named_locks import NamedLocks, short_name
from .names import quoted_name, schema_of
from .transactions import (
    UNMARKED,
    CommitOutcomes,
    Outcome,
    TransactionLifecycle,
    TransactionMarks,
    TransactionStatus,
)
from .waits import LockWaits, ServerHoldLimit

__all__ = [
    "AUTOCOMMIT",
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
    "ask_driver",
    "asked_here",
    "base_of",
    "connection_setting",
    "is_in_index",
    "levels_for",
    "lock_in_select",
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


class ServerClock(NamedTuple):
    """The clock of a database, which decides how long a check-out is valid.

    :ivar now: the SQL expression of the time at which it is evaluated, or its statement began: in
        UTC, without a time zone, with microseconds if the server has them.  Never the begin of the
        transaction, which may have waited for a lock since.
    :ivar timestamp: returns the type of a column with microseconds and without a time zone.
    """

    now: str
    timestamp: Callable[[], TypeEngine[Any]]


Read = tuple[Select[Any], Mapping[str, Any]]
"""A statement and its parameters."""


class Pipeline(Protocol):
    """Several statements of one connection in one round trip, if its driver can send them so.

    :ivar commit_sent: True if the current error is one of statements that were sent with COMMIT.
    """

    commit_sent: bool

    def locking(
        self,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]] | None,
        *,
        few_rows: bool,
        hold_limit: float | None = None,
    ) -> AbstractContextManager[None]:
        """Send a lock of this block together with BEGIN, its limits and these reads.

        ``few_rows``: it locks a few rows by their keys, as for ``LockWaits.limited()``.  The reads
        follow the lock.  If one of them is executed next, in this block, it gets the early result;
        any other statement discards these results.
        """

    def keep_writes(self) -> None:
        """Keep the writes of a flush back from now on; any other statement is executed after them."""

    def expect_commit(self, may_commit: Callable[[], bool], *, alone: bool) -> None:
        """Send the kept writes together with the COMMIT that comes next.

        :param may_commit: called when COMMIT is due; returns whether to send it too.
        :param alone: the transaction has no other connection, so ``may_commit()`` need not be
            called if no statement was executed.
        """

    def send_writes(self) -> None:
        """Send the kept writes.  :raises StaleDataError: one finds no row."""

    def ask(self, question: str) -> Sequence[str | None]:
        """Send the kept writes, followed by a question, in one round trip.

        :param question: a SELECT without parameters that returns one row of texts.
        :returns: the row.
        """

    def forget_writes(self) -> None:
        """Stop keeping writes back, and discard the unsent ones."""

    def pause(self, *, paused: bool) -> None:
        """Keep no writes back while paused."""


class LockStrategy:
    """The dialect of one database: its locks, errors and connections.  Subclass it for a new one.

    A subclass must define ``name``, ``isolation`` and ``errors``; everything else has a default.
    An attribute that is an object has one subject, and is replaced as a whole: by the class, or for
    an engine whose server differs.  The built-in classes replace some for an engine, even those of
    a subclass.  ``statements.texts`` are always the class's.

    There is one strategy per SQLAlchemy dialect object, that is per engine, so it may remember the
    answers of its server.  Facts are class attributes; methods compute the rest.  A strategy knows
    SQL and the driver, never a Session.
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
    """The limits of the waits for row locks."""

    status: TransactionStatus = TransactionStatus()
    """The driver's report about its transaction."""

    lifecycle: TransactionLifecycle = TransactionLifecycle()
    """The steps at the begin, the savepoints and the end of a transaction."""

    marks: TransactionMarks | None = None
    """The marks of transactions, or None."""

    commit_outcomes: CommitOutcomes | None = None
    """The outcome of a COMMIT whose answer was lost; None: the server cannot tell."""

    named_locks: NamedLocks | None = None
    """The locks of names; None: unsupported."""

    hold_limit: ServerHoldLimit | None = None
    """The server's limit for an idle transaction; None: only the client's clock limits it."""

    monitoring: ClassVar[LockMonitoring | None] = None
    """The holders and waiters of locks; None: neither lock_waits() nor ``diagnose=True`` works."""

    clock: ClassVar[ServerClock | None] = None
    """The clock for check-outs; None: no check-outs."""

    limits_by_type: ClassVar[bool] = True
    """A column keeps only values of its type and length."""

    refused: Mapping[LockOptions, str] = MappingProxyType({})
    """The reason for each lock or modifier that this database or version does not have."""

    cluster: Cluster | None = None
    """The cluster of the server, or None; set by ``note_server()``."""

    compatible: FoundServer | None = None
    """The product that answers instead of the dialect's own; set by ``note_server()``."""

    findings: dict[Any, Any]
    """Facts about this engine that other packages determined once, by their own keys."""

    def __init__(self, dialect: Dialect) -> None:
        # Do not keep the dialect here: the strategy lives as long as its dialect.
        self.findings = {}

    def asking(self, connection: Connection) -> AbstractContextManager[Connection]:
        """Return a block with the connection for a question about the server or a table.

        The library asks all its own questions in such a block, so that the program finds this
        connection and its transaction unchanged.  By default they use a separate connection.
        Return ``asked_here()`` if a question by ``ask_driver()`` on this very connection leaves
        nothing behind: it begins and ends no transaction, opens no snapshot, and uses up no setting
        of the next transaction.

        :raises LockNotSupported: it needs another connection, which cannot be made.
        """
        return other_connection(connection)

    def note_server(self, connection: Connection) -> None:
        """Remember the settings of the server; called once, with a connection as of ``asking()``.

        Call ``note_default_level()``, unless new transactions always have the same level.
        """

    def pipeline(self, connection: Connection) -> Pipeline | None:
        """Return the object that sends several statements of this connection in one round trip, or
        None.
        """
        return None

    def check_autocommit(self, connection: Connection) -> None:
        """:raises LockNotSupported: every statement is a separate transaction."""
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise LockNotSupported(AUTOCOMMIT)

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

        If the transaction has the lock, this takes anything else that the lock needs for the table.

        :param lock: the lock that follows, or None.
        :param adopted: it is that of a ``with_for_update()``, which is executed next.
        """

    def hides_rows(self, connection: Connection, table: Table) -> str | None:
        """Return why a lock may miss rows of this table that can be read, or None.

        Called if a lock by key found no row.
        """
        return None

    def begin(self, connection: Connection, lock: LockOptions, seconds: float | None) -> None:
        """Send the first statement of a transaction opened for this lock."""

    def join(
        self,
        connection: Connection,
        lock: LockOptions,
        seconds: float | None,
        opened_for: LockOptions | None,
        header: Table | None,
    ) -> None:
        """Take this lock in a transaction that is already open, at one of its ``levels``.

        If the driver reports that no transaction is open yet, and SQLAlchemy does not set its level,
        ``begin()`` is called instead.

        :param opened_for: the lock for which the transaction was opened; None: for something else.
        :param header: the table whose rows will be locked; None for a named lock.
        """

    def inserting(
        self, connection: Connection, key: str, seconds: float | None
    ) -> AbstractContextManager[bool]:
        """Return a block in which a row is inserted that others may insert at the same time.

        It yields whether no other is in a block with this key.  If two INSERTs of one row can
        deadlock, it admits one at a time; the block must not wait for a lock then.

        :param key: identifies the row, equally for all who insert it.
        :param seconds: the limit of each wait for another's INSERT, if the server has one; None:
            the server's configuration.
        :raises LockNotAvailable: another was in the block for that long.
        """
        return nullcontext(False)
