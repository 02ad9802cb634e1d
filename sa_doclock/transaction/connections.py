"""The connections of a session's transaction, and how each is made fit for a lock.

The isolation level of a lock is set before its transaction starts.  Afterwards SQLAlchemy
only warns, and the server goes on reading as it did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.util import immutabledict

from ..dialects import find_strategy, strategies, strategy_for
from ..dialects.base import AUTOCOMMIT, LockStrategy
from ..errors import LockNotSupported, WrongIsolation
from ..options import LockOptions
from ..pool import (
    GUARD_ISOLATION_LEVEL,
    ROLLBACK,
    execute_statements_now,
    note_ended,
    on_return,
    withdraw,
)
from ..sqlalchemy_internals import closes_connection
from .error_translation import listen_to_errors, listened_dialects, states_by_connection
from .plan import LockPlan

if TYPE_CHECKING:
    from .state import TransactionState

ISOLATION = "isolation_level"


@dataclass(slots=True)
class TransactionConnection:
    """One connection that takes part in the session's transaction.

    :ivar known: how its database locks; None where nothing is known of the database.
    :ivar opened_for: the lock that its transaction was opened for.
    :ivar level: the isolation level of its transaction; None until a lock needs to know it.
    :ivar level_before: the level to restore, of a Connection that was lent to the session.
    """

    connection: Connection
    known: LockStrategy | None
    opened_for: LockOptions | None = None
    level: str | None = None
    level_before: str | None = None

    @property
    def strategy(self) -> LockStrategy:
        """The dialect of its database.  :raises LockNotSupported: nothing is known of it."""
        return self.known or strategy_for(self.connection)

    def row_lock(self, plan: LockPlan) -> LockOptions:
        """Return the lock that a SELECT must carry here, to give what was asked for."""
        if plan.level is None or plan.level == self.level:
            return plan.row_lock
        return self.strategy.row_lock(plan.lock, self.level)


def level_of(bind: Engine | Connection) -> str | None:
    """Return the isolation level as SQLAlchemy set it, or else the server's default."""
    chosen = bind.get_execution_options().get(ISOLATION)
    # A dialect that has not connected yet has no such attribute.  Only SQLite can be met
    # like that, which has one level.
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    return str(chosen) if chosen else default


class TransactionConnections:
    """The connections of one session's transaction, by engine.

    :param state: whose errors are those of these connections.
    :param low_priority: a deadlock is to end this transaction rather than another.
    """

    def __init__(
        self,
        session: Callable[[], Session],
        state: ReferenceType[TransactionState],
        *,
        low_priority: bool,
    ) -> None:
        self._session = session
        self._state = state
        self._low_priority = low_priority
        self._by_engine: dict[Engine, TransactionConnection] = {}

    def add(self, connection: Connection) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it."""
        if connection.engine not in self._by_engine:
            known = strategies.get(connection.dialect) or find_strategy(connection)
            added = TransactionConnection(connection, known)
            self._by_engine[connection.engine] = added
            others = states_by_connection.get(connection, ())
            if others:  # a Connection that was lent to several sessions
                others = tuple(one for one in others if one() is not None)
            states_by_connection[connection] = (*others, self._state)
            if connection.dialect not in listened_dialects:
                listen_to_errors(connection.dialect)
            if known is not None and known.cluster is not None:
                event.listen(connection, "rollback", known.before_rollback)
            if known is not None and self._low_priority:
                known.lower_deadlock_priority(connection)
        if self._session().in_nested_transaction():
            self.before_savepoint()

    def before_savepoint(self) -> None:
        """Send what the databases need in front of a SAVEPOINT."""
        for one in self._by_engine.values():
            if one.known is not None:
                one.known.before_savepoint(one.connection)

    def all(self) -> list[Connection]:
        """Return those that have begun their part of the transaction."""
        return [one.connection for one in self._by_engine.values()]

    def is_lent(self, connection: Connection) -> bool:
        """Return whether its transaction may be ended by another than the session."""
        transaction = self._session().get_transaction()
        return transaction is None or not closes_connection(transaction, connection)

    def lost(self) -> bool:
        """Return whether a connection was lost, and with it the transaction and its locks."""
        for one in self._by_engine.values():  # noqa: SIM110  # any() is slower, before each lock
            if one.connection.invalidated:
                return True
        return False

    def aborted(self) -> bool:
        """Return whether the server would answer COMMIT by ROLLBACK; where none can tell, True."""
        return any(
            one.known is not None and one.known.is_aborted(one.connection) is not False
            for one in self._by_engine.values()
        )

    def refuse_write_in_snapshot(self) -> None:
        """:raises WrongIsolation: a SnapshotRead has opened the transaction."""
        for one in self._by_engine.values():
            if one.opened_for is LockOptions.SnapshotRead:
                raise WrongIsolation(
                    "a SnapshotRead has opened this transaction read-only; end it before you write"
                )

    def before_commit(self) -> None:
        """Have a ROLLBACK sent later for a COMMIT that is not sent."""
        for one in self._by_engine.values():
            on_return(one.connection, ROLLBACK)

    def after_commit(self) -> None:
        """Note that all of them have committed."""
        for one in self._by_engine.values():
            withdraw(one.connection, ROLLBACK)
        self.note_server_idle()

    def note_server_idle(self) -> None:
        """Note that COMMIT or ROLLBACK was answered, and that the connections go back next."""
        for one in self._by_engine.values():
            connection, known = one.connection, one.known
            if known is None or not known.reports_idle or self.is_lent(connection):
                continue
            if not (connection.closed or connection.invalidated or connection.in_transaction()):
                note_ended(connection, known.is_idle)

    def prepare(
        self,
        bind: Engine | Connection,
        strategy: LockStrategy,
        plan: LockPlan,
        seconds: float | None,
        bind_arguments: Mapping[str, Any],
    ) -> TransactionConnection:
        """Return the connection to take this lock on, its transaction fit for it.

        :param bind: what ``get_bind()`` returns for ``bind_arguments``.
        :raises WrongIsolation: the transaction is open already, and is not fit.
        :raises LockNotSupported: AUTOCOMMIT.
        """
        session = self._session()
        known = self._by_engine.get(bind.engine)
        if known is not None or (isinstance(bind, Connection) and bind.in_transaction()):
            return self._join(known, bind, strategy, plan, seconds, bind_arguments)
        # Session(execution_options=...) came with SQLAlchemy 2.1
        of_session = getattr(session, "execution_options", {}).get(ISOLATION)
        level = of_session or level_of(bind)
        if level == "AUTOCOMMIT" or (
            strategy.autocommit_by_default
            and not (of_session or ISOLATION in bind.get_execution_options())
        ):
            raise LockNotSupported(AUTOCOMMIT)
        # Switching costs MySQL four round trips, so not where the level is right already.
        switches = plan.level is not None and plan.level != level
        options = immutabledict({ISOLATION: plan.level}) if switches else None
        driver_error: Any = bind.dialect.loaded_dbapi.Error
        savepoint, arguments = session.in_nested_transaction(), dict(bind_arguments)
        try:
            if savepoint:
                self._begin_before_savepoint(arguments, options)
            else:
                session.connection(bind_arguments=arguments, execution_options=options)
        except driver_error as error:
            raise _wrapped(error, driver_error, bind.dialect) from error
        opened = self._by_engine[bind.engine]
        opened.level = plan.level if switches else level
        if switches:
            on_return(opened.connection, GUARD_ISOLATION_LEVEL)
            if isinstance(bind, Connection):
                opened.level_before = level
        strategy.check_autocommit(opened.connection)
        strategy.begin(opened.connection, plan.lock, seconds)
        opened.opened_for = plan.lock
        if savepoint:
            session.connection(bind_arguments=dict(bind_arguments))  # sends the SAVEPOINT
        return opened

    def _begin_before_savepoint(
        self, arguments: dict[str, Any], options: immutabledict[str, Any] | None
    ) -> None:
        # What must come first comes before the SAVEPOINT.
        root = self._session().get_transaction()
        assert root is not None
        root.connection(arguments.pop("mapper", None), execution_options=options, **arguments)

    def _join(
        self,
        known: TransactionConnection | None,
        bind: Engine | Connection,
        strategy: LockStrategy,
        plan: LockPlan,
        seconds: float | None,
        bind_arguments: Mapping[str, Any],
    ) -> TransactionConnection:
        session = self._session()
        if known is None:
            assert isinstance(bind, Connection)
            strategy.before_savepoint(bind)  # the session may join by one
        if known is None or session.in_nested_transaction():
            # Joins the lent connection's transaction; sends the SAVEPOINT, if it is not yet
            # sent, in front of all that its rollback has to undo.
            session.connection(bind_arguments=dict(bind_arguments))
        joined = self._by_engine[bind.engine]
        if joined.level is None:
            joined.level = level_of(joined.connection)
        strategy.check_autocommit(joined.connection)
        opens = strategy.join(
            joined.connection, plan.lock, seconds, joined.level, joined.opened_for, plan.table
        )
        if opens:
            joined.opened_for = plan.lock
        return joined

    def close(self) -> None:
        """Forget the connections; put a lent one back to how it came."""
        ended = list(self._by_engine.values())
        self._by_engine.clear()
        for one in ended:
            connection, level = one.connection, one.level_before
            if one.known is not None and one.known.cluster is not None:
                event.remove(connection, "rollback", one.known.before_rollback)
            if connection.closed or connection.invalidated:
                continue
            if not connection.in_transaction():  # else the lender's transaction goes on
                execute_statements_now(connection)
            if level is not None and not connection.invalidated:
                _set_level(connection, level)


def _wrapped(error: Any, driver_error: Any, dialect: Dialect) -> DBAPIError:
    # Setting the level of a connection that died in the pool is the one statement whose error
    # SQLAlchemy does not wrap.
    wrapped: DBAPIError = DBAPIError.instance(
        f"SET {ISOLATION}",
        None,
        error,
        driver_error,
        connection_invalidated=dialect.is_disconnect(error, None, None),
        dialect=dialect,
    )
    return wrapped


def _set_level(connection: Connection, level: str) -> None:
    try:
        connection.execution_options(isolation_level=level)
    except Exception as error:  # noqa: BLE001  # the transaction has ended well or not; this has not
        connection.invalidate(error)  # the lender gets a new one
