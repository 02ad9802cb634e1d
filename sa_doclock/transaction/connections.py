"""The connections of a session's transaction, and how each is made fit for a lock.

The isolation level of a lock is set before its transaction starts.  Afterwards
SQLAlchemy only warns, and the server goes on reading as it did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Mapper, Session, SessionTransaction
from sqlalchemy.util import immutabledict

from ..dialects import find_strategy, strategy_for
from ..dialects.base import AUTOCOMMIT, LockStrategy
from ..documents import own_table
from ..errors import LockNotSupported
from ..monitoring import warn_of_cluster
from ..options import LockOptions
from ..pool import level_was_set, note_ended, rollback_later, rollback_not_needed, undo_now
from ..session_ref import weakly

ISOLATION = "isolation_level"


@dataclass(slots=True)
class TransactionConnection:
    """One connection that takes part in the session's transaction."""

    connection: Connection
    known: LockStrategy | None  # None: a database that we know nothing of
    lent: bool = False  # it goes back to the caller, not to its pool
    opened_for: LockOptions | None = None
    level_before: str | None = None  # of a Connection that the caller lent us

    @property
    def level(self) -> str | None:
        """The isolation level of the transaction."""
        return level_of(self.connection)

    @property
    def strategy(self) -> LockStrategy:
        """How its database locks.  :raises LockNotSupported: nobody knows."""
        return self.known or strategy_for(self.connection)

    def row_lock(self, lock: LockOptions) -> LockOptions:
        """The lock that a SELECT must carry here, to give what was asked for."""
        return self.strategy.row_lock(lock, self.level)


def was_lent(transaction: SessionTransaction, connection: Connection) -> bool:
    """Whether the session was given this connection, and has not taken it from a pool itself."""
    while transaction.parent is not None:
        transaction = transaction.parent
    # No public interface: what get_bind() has returned, which a program may overwrite, is kept
    # here only, as whether the session closes the connection.  Where it is not, nothing is sure.
    # tests/integration/pipeline/test_round_trips.py fails when it is no more.
    connections: Mapping[Any, Any] = getattr(transaction, "_connections", {})
    *_, closes = connections.get(connection, (False,))
    return not closes


def level_of(bind: Engine | Connection) -> str | None:
    """The isolation level as SQLAlchemy set it, or else as the server's default was found."""
    chosen = bind.get_execution_options().get(ISOLATION)
    # A dialect that has not connected yet has no such attribute.  Only SQLite can be met
    # like that, which has one level.
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    return str(chosen) if chosen else default


class TransactionConnections:
    """The connections of one session's transaction, by engine."""

    def __init__(self, session: Session, *, gives_way: bool) -> None:
        self._session = weakly(session)
        self._gives_way = gives_way
        self._by_engine: dict[Engine, TransactionConnection] = {}

    def add(self, connection: Connection, *, lent: bool) -> TransactionConnection:
        """A connection has begun its part of the transaction, or a savepoint in it."""
        participant = self._by_engine.get(connection.engine)
        if participant is None:
            participant = TransactionConnection(connection, find_strategy(connection), lent)
            self._by_engine[connection.engine] = participant
            if participant.known is not None and participant.known.cluster is not None:
                event.listen(connection, "rollback", participant.known.before_rollback)
            if self._gives_way and participant.known is not None:
                participant.known.lower_deadlock_priority(connection)
        if self._session().in_nested_transaction():
            self.before_savepoint()
        return participant

    def before_savepoint(self) -> None:
        """Send what the databases need in front of a SAVEPOINT."""
        for participant in self._by_engine.values():
            if participant.known is not None:
                participant.known.before_savepoint(participant.connection)

    def connections(self) -> list[Connection]:
        """Those that have begun their part of the transaction."""
        return [participant.connection for participant in self._by_engine.values()]

    def is_lent(self, connection: Connection) -> bool:
        """Whether its transaction may be ended by another than the session."""
        participant = self._by_engine.get(connection.engine)
        return participant is not None and participant.lent

    def lost(self) -> bool:
        """Whether a connection was lost, and with it the transaction and its locks."""
        return any(participant.connection.invalidated for participant in self._by_engine.values())

    def aborted(self) -> bool:
        """Whether the server would answer COMMIT by ROLLBACK; where none can tell, it would."""
        return any(
            participant.known is not None
            and participant.known.is_aborted(participant.connection) is not False
            for participant in self._by_engine.values()
        )

    def commit_begins(self) -> None:
        """All of them are about to commit."""
        for participant in self._by_engine.values():
            rollback_later(participant.connection)

    def commit_returned(self) -> None:
        """All of them have committed."""
        for participant in self._by_engine.values():
            rollback_not_needed(participant.connection)

    def read_only(self) -> bool:
        """Whether the transaction was opened for a SnapshotRead."""
        return any(
            participant.opened_for is LockOptions.SnapshotRead
            for participant in self._by_engine.values()
        )

    def prepare(
        self,
        bind_arguments: Mapping[str, Any],
        mapper: Mapper[Any] | None,
        lock: LockOptions,
        seconds: float | None,
    ) -> TransactionConnection:
        """The connection to take this lock on, its transaction fit for it.

        :param mapper: whose rows are locked; None where the lock is on no row.
        :raises WrongIsolation: the transaction is open already, and is not fit.
        :raises LockNotSupported: AUTOCOMMIT, or this database cannot give that lock.
        """
        session = self._session()
        if not session.is_active:
            session.connection()  # raises PendingRollbackError, as after a failed flush
        bind = session.get_bind(**bind_arguments)
        strategy = strategy_for(bind)
        strategy.check_support(lock)
        warn_of_cluster(strategy, lock, named=mapper is None)
        participant = self._by_engine.get(bind.engine)
        lent = isinstance(bind, Connection) and bind.in_transaction()
        if participant is None and not lent:
            return self._open(bind, strategy, bind_arguments, lock, seconds)
        if participant is None:
            strategy.before_savepoint(cast("Connection", bind))  # the session may join by one
        if participant is None or session.in_nested_transaction():
            # Joins the lent connection's transaction; sends the SAVEPOINT, if it is not yet
            # sent, in front of all that its rollback has to undo.
            session.connection(bind_arguments=dict(bind_arguments))
        participant = self._by_engine[bind.engine]
        strategy.check_autocommit(participant.connection)
        opens = strategy.join(
            participant.connection,
            lock,
            seconds,
            participant.level,
            participant.opened_for,
            None if mapper is None else own_table(mapper),
        )
        if opens:
            participant.opened_for = lock
        return participant

    def _open(
        self,
        bind: Engine | Connection,
        strategy: LockStrategy,
        bind_arguments: Mapping[str, Any],
        lock: LockOptions,
        seconds: float | None,
    ) -> TransactionConnection:
        session = self._session()
        # Session(execution_options=...) came with SQLAlchemy 2.1
        of_session = getattr(session, "execution_options", {}).get(ISOLATION)
        level = of_session or level_of(bind)
        declared = of_session or ISOLATION in bind.get_execution_options()
        if level == "AUTOCOMMIT" or (strategy.autocommit_by_default and not declared):
            raise LockNotSupported(AUTOCOMMIT)
        wanted = next(iter(strategy.levels_for(lock)), level)
        # Switching costs MySQL four round trips, so not where the level is right already.
        self._procure(
            bind.dialect,
            bind_arguments,
            immutabledict({ISOLATION: wanted}) if wanted != level else None,
        )
        participant = self._by_engine[bind.engine]
        if wanted != level:
            level_was_set(participant.connection)
        if isinstance(bind, Connection) and wanted != level:
            participant.level_before = level
        strategy.check_autocommit(participant.connection)
        strategy.begin(participant.connection, lock, seconds)
        participant.opened_for = lock
        if session.in_nested_transaction():
            session.connection(bind_arguments=dict(bind_arguments))  # sends the SAVEPOINT
        return participant

    def _procure(
        self,
        dialect: Dialect,
        bind_arguments: Mapping[str, Any],
        options: immutabledict[str, Any] | None,
    ) -> None:
        session, arguments = self._session(), dict(bind_arguments)
        driver_error: Any = dialect.loaded_dbapi.Error
        try:
            if session.in_nested_transaction():
                # What must come first comes before the SAVEPOINT.
                root = session.get_transaction()
                assert root is not None
                root.connection(
                    arguments.pop("mapper", None), execution_options=options, **arguments
                )
            else:
                session.connection(bind_arguments=arguments, execution_options=options)
        except driver_error as error:
            # Setting the level of a connection that died in the pool is the one statement
            # whose error SQLAlchemy does not wrap.
            raise DBAPIError.instance(
                f"SET {ISOLATION}",
                None,
                error,
                driver_error,
                connection_invalidated=dialect.is_disconnect(error, None, None),
                dialect=dialect,
            ) from error

    def note_server_idle(self) -> None:
        """The servers have answered COMMIT or ROLLBACK, and the connections go back next."""
        for participant in self._by_engine.values():
            connection, known = participant.connection, participant.known
            if known is None or not known.reports_idle or participant.lent:
                continue
            if not (connection.closed or connection.invalidated or connection.in_transaction()):
                note_ended(connection, known.is_idle)

    def close(self) -> None:
        """The transaction is over: put a lent Connection back to how it came."""
        participants = list(self._by_engine.values())
        self._by_engine.clear()
        for participant in participants:
            connection, level = participant.connection, participant.level_before
            if participant.known is not None and participant.known.cluster is not None:
                event.remove(connection, "rollback", participant.known.before_rollback)
            if connection.closed or connection.invalidated:
                continue
            if not connection.in_transaction():  # else the lender's transaction goes on
                undo_now(connection)
            if level is not None and not connection.invalidated:
                _set_level(connection, level)


def _set_level(connection: Connection, level: str) -> None:
    try:
        connection.execution_options(isolation_level=level)
    except Exception as error:  # noqa: BLE001  # the transaction has ended well or not; this has not
        connection.invalidate(error)  # the lender gets a new one
