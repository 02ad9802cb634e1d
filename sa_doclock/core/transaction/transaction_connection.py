"""The connections of a session's transaction, each with its isolation level and its locks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, TwoPhaseTransaction, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, SessionTransaction

from ...dialects import SavepointMarks, find_strategy, is_spent, strategy_for, wrapped_error
from ...dialects.base import (
    UNMARKED,
    Cluster,
    Ends,
    EveryError,
    LockStrategy,
    TransactionLifecycle,
    TransactionStatus,
    lock_in_select,
)
from ...errors import DocLockError, LockMisuse, WrongIsolation
from ...interruptions import Interruptible
from ...keys import DocumentKey
from ...options import LockOptions, base_of
from ...pool import ROLLBACK, ReturnAction, actions_of, execute_statements_now, note_ended
from ...sqlalchemy_internals import closes_connection
from ..ledger import Ledger, LedgerMark, ledger_of
from .plan import LockPlan

T = TypeVar("T")

ISOLATION: Final = "isolation_level"

next_moment: Final[Callable[[], int]] = count(1).__next__
"""Return a number that is greater than all before, and so orders events."""

Mark = tuple[Ledger, LedgerMark, int]
"""A point in time: the ledger, its mark, and the number of the moment."""

_NO_TRANSACTION: Final = (
    "the lock has ended with its statement: a COMMIT or ROLLBACK that the program has sent as text has "
    "ended the transaction, and this driver begins no other; call session.rollback(), and end a "
    "transaction with session.commit() or session.rollback() alone"
)


_NEVER: Final = -1  # matches no number of statements
_CONNECTION: Final = (Ends.CONNECTION, Ends.CONNECTION_BEFORE)


def level_of(bind: Engine | Connection) -> str | None:
    """Return the isolation level as SQLAlchemy set it, or else the server's default."""
    chosen = bind.get_execution_options().get(ISOLATION)
    # A dialect without a connection lacks this.  Only SQLite, with one level, gets here before.
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    return str(chosen) if chosen else default


def is_broken(connection: Connection, strategy: LockStrategy, error: BaseException) -> bool:
    """Return whether the error has ended the connection, though SQLAlchemy does not know it.

    Only a driver error carries a server code; a KeyError can hold the same number.
    """
    if connection.invalidated or connection.closed:
        return False  # SQLAlchemy knows it
    of_driver = isinstance(error, connection.dialect.loaded_dbapi.Error)
    if of_driver and strategy.errors[strategy.errors.native_code(error)].ends in _CONNECTION:
        return True
    return strategy.lifecycle.has_unread_answer(connection, error)


def is_lost(connection: Connection, strategy: LockStrategy, error: Any) -> bool:
    """Return whether the error means that the connection is lost, as SQLAlchemy knows it, or we do."""
    driver: Any = connection.connection.dbapi_connection
    of_driver = isinstance(error, connection.dialect.loaded_dbapi.Error)
    if of_driver and connection.dialect.is_disconnect(error, driver, None):
        return True
    return is_broken(connection, strategy, error)


class TransactionConnection:
    """One connection in the session's transaction.

    :ivar known: its lock strategy; None for an unknown database.
    :ivar opened_for: the lock for which its transaction was opened.
    :ivar fit_for: the plan for which its open transaction was last joined, and the limit of the
        wait.
    :ivar level: the isolation level of its transaction; None until a lock needs it.
    :ivar level_before: the level to restore, for a lent Connection.
    :ivar mark: identifies the transaction that took the locks; None: not marked.
    :ivar schema: the current schema when the transaction was first marked.
    :ivar schema_in_doubt: a foreign statement may have changed it since.
    :ivar in_doubt: a foreign statement may have ended the transaction since.
    :ivar unmarked: a foreign statement runs, and the transaction could not be marked before it.
    :ivar begun: a lock was granted here, and the driver has not denied that a transaction is open.
    :ivar foreign_asked: the number of foreign statements in the transaction when ``level`` was last
        known.
    :ivar may_have_ended: an error or a foreign statement may have ended it, so that ROLLBACK finds
        none.
    :ivar asking: the server is being asked whether an error has ended it.
    :ivar prepared: the first phase of a two-phase commit has begun, whose statements are
        SQLAlchemy's.
    :ivar savepoints: the names of the program's own savepoints, with the locks held at each.
    :ivar listeners: the names of events, the functions that listen to them, and their purpose.
    :ivar on_return: the actions for its return to the pool, from the commit on.
    """

    # Only the values that differ from the class's are set.
    opened_for: LockOptions | None = None
    fit_for: tuple[LockPlan, float | None] | None = None
    level: str | None = None
    level_before: str | None = None
    mark: object = None
    schema: str | None = None
    schema_in_doubt = False
    in_doubt = False
    unmarked = False
    begun = False
    foreign_asked = 0
    may_have_ended = False
    asking = prepared = False
    savepoints: tuple[tuple[str, Mark], ...] = ()
    listeners: tuple[tuple[str, Callable[..., Any], str], ...] = ()
    on_return: dict[ReturnAction, None] | None = None

    def __init__(self, connection: Connection, known: LockStrategy | None) -> None:
        self.connection, self.known = connection, known

    @property
    def strategy(self) -> LockStrategy:
        """The dialect of its database.  :raises LockNotSupported: the database is unknown."""
        return self.known or strategy_for(self.connection)

    def listen(self, name: str, function: Callable[..., Any], purpose: str = "") -> None:
        """Add a listener to an event, until :meth:`stop_listening`."""
        event.listen(self.connection, name, function)
        self.listeners = (*self.listeners, (name, function, purpose))

    def is_listened(self, purpose: str) -> bool:
        """Return whether functions listen for this purpose."""
        return any(known == purpose for *_, known in self.listeners)

    def expect_no_transaction(self) -> None:
        """Prepare for a ROLLBACK after an error, or a foreign statement, that may have ended
        everything.
        """
        known = self.known
        if known is None or self.may_have_ended:
            return
        self.may_have_ended = True
        if type(known.lifecycle).before_rollback is not TransactionLifecycle.before_rollback:
            self.listen("rollback", known.lifecycle.before_rollback)

    def stop_listening(self) -> None:
        """Remove the listeners; only needed if the Connection outlives the transaction."""
        for name, function, _ in self.listeners:
            event.remove(self.connection, name, function)
        self.listeners = ()

    def follow_cluster(self, cluster: Cluster, session: Callable[[], Session]) -> None:
        """Notice if another node of the cluster ends the transaction."""
        for name, function in cluster.listeners(
            lambda: not ledger_of(session()).is_empty()
        ).items():
            self.listen(name, function)

    def note_lock(self, strategy: LockStrategy) -> None:
        """Record that a lock was granted here.

        :param strategy: the dialect of its database.
        :raises LockMisuse: it was granted outside a transaction, and has ended with its statement.
        """
        errors, marks = strategy.errors, strategy.marks
        if errors.every_error is EveryError.MAY_END and self.mark is None and marks is not None:
            self.mark = marks.mark_transaction(self.connection)
        if not self.begun:  # some drivers send BEGIN with the first statement
            status = strategy.status
            self.begun = status.in_transaction(self.connection) is not False
            if not self.begun:
                raise LockMisuse(_NO_TRANSACTION)

    def before_foreign(self) -> None:
        """Mark the transaction before a statement that may end it."""
        known, self.unmarked = self.known, False
        if known is None:
            return
        marks = known.marks
        if marks is None or known.status.in_transaction(self.connection) is False:
            return
        marks_now = self.mark is None or is_spent(self.mark)
        if marks_now:
            self.mark = UNMARKED  # the mark's own statement is not foreign
            mark = marks.mark_transaction(self.connection)
            self.unmarked = mark is UNMARKED
            self.mark = None if self.unmarked else mark
        # If errors end the transaction unseen, the first lock set a mark, but asked for no schema.
        asks = marks_now or known.errors.every_error is EveryError.MAY_END
        if asks and self.schema is None and self.mark is not None:
            self.schema = marks.current_schema(self.connection)
        self.schema_in_doubt = self.schema is not None
        self.in_doubt = self.mark is not None

    def has_ended(self, *, ask: bool) -> bool:
        """Return whether the locks' transaction has ended at the server.

        This is the one place that compares the ledger with the connection's report, and after a
        foreign statement with the server's: before each lock, flush and commit, and when held_locks
        is read. ``connection_events.py`` and ``_translate()`` only ask what a driver knows, after a
        statement or an error.

        :param ask: ask the server, if a foreign statement has run since it was last asked.
        """
        connection, known = self.connection, self.known
        if connection.invalidated or connection.closed:
            return True
        if self.begun and known is not None and known.status.in_transaction(connection) is False:
            return True
        if ask and self.in_doubt and self.transaction_has_changed():
            return True
        if ask and self.schema_in_doubt:
            self._check_schema()
        return False

    def transaction_has_changed(self) -> bool:
        """Return whether the server reports a transaction other than the one with the locks."""
        if self.connection.closed or self.connection.invalidated:
            return True
        marks = self.strategy.marks
        assert marks is not None  # it has a mark
        self.asking = True
        try:
            changed = not marks.has_mark(self.connection, self.mark)
        except Exception as error:
            if not self._is_lost_by(error):
                raise
            changed = self.connection.invalidated
        finally:
            self.asking = False
        self.in_doubt = False
        if isinstance(marks, SavepointMarks):
            self.mark = None
        return changed

    def _check_schema(self) -> None:
        """:raises LockMisuse: names without a schema refer to other rows now."""
        marks = self.strategy.marks
        now = None if marks is None else self._ask(marks.current_schema)
        self.schema_in_doubt = now is not None and now != self.schema
        if self.schema_in_doubt:
            raise LockMisuse(
                f"the current schema is {now!r}, and was {self.schema!r} when rows were locked: the same "
                "table and key name another row now. Set it back (SET search_path, USE), or use one "
                "transaction for each schema"
            )

    def _is_lost_by(self, error: Exception) -> bool:
        """Return whether a question of ours failed because the connection is gone.

        If SQLAlchemy recognizes the error, the next statement reports it.
        """
        met: Any = getattr(error, "orig", error)
        if isinstance(error, DocLockError) or met is None:
            return False
        driver: Any = self.connection.connection.dbapi_connection
        if self.connection.dialect.is_disconnect(met, driver, None):
            return True
        if is_broken(self.connection, self.strategy, met):
            self.connection.invalidate(error)
        return self.connection.invalidated

    def is_aborted(self, *, unknown: bool = False) -> bool:
        """Return whether the server would answer COMMIT by ROLLBACK; sends nothing.

        :param unknown: the answer if the driver cannot tell.
        """
        if self.known is None or self.known.errors.every_error is not EveryError.ABORTS:
            return False
        if self.connection.closed or self.connection.invalidated:
            return unknown
        aborted = self.known.status.is_aborted(self.connection)
        return unknown if aborted is None else aborted

    def ask_level(self) -> str | None:
        """Ask the server for the isolation level of the transaction; None: it cannot tell."""
        return self._ask(self.strategy.isolation.ask_level)

    def is_idle(self) -> bool | None:
        """Return whether the server has no open transaction here; None if the driver does not report it."""
        is_open = self._ask(self.strategy.status.has_open_transaction)
        return None if is_open is None else not is_open

    def _ask(self, question: Callable[[Connection], T | None]) -> T | None:
        """Return the server's answer, or None if the connection is gone."""
        connection, answer = self.connection, None
        try:
            with Interruptible(connection):
                answer = question(connection)
        except (DBAPIError, connection.dialect.loaded_dbapi.Error) as error:
            if self._is_lost_by(error):
                return None
            if isinstance(error, DBAPIError):
                raise
            raise wrapped_error(error, connection.dialect, "a question to the server") from error
        return answer

    def note_rolled_back(self) -> None:
        """Record a rollback to a known savepoint, which ended a later mark: it is the same transaction."""
        if self.known is not None and isinstance(self.known.marks, SavepointMarks):
            self.mark, self.in_doubt = None, False

    def in_next_transaction(self) -> TransactionConnection:
        """Return the same connection in its next transaction, without any known state."""
        after = TransactionConnection(self.connection, self.known)
        after.foreign_asked = _NEVER
        after.level_before, after.on_return = self.level_before, self.on_return
        after.listeners, after.may_have_ended = self.listeners, self.may_have_ended
        return after

    def note_known(self, strategy: LockStrategy, session: Callable[[], Session]) -> None:
        """Record its lock strategy, which could not be asked for when its transaction began."""
        self.known = strategy
        if strategy.cluster is not None:
            self.follow_cluster(strategy.cluster, session)

    def note_level(self, level: str | None, foreign_asked: int) -> None:
        """Record the isolation level of its transaction; see the attributes."""
        self.level, self.foreign_asked = level, foreign_asked

    def note_begin(self) -> None:
        """Record that BEGIN was sent, if the driver says so: a savepoint comes next."""
        assert self.known is not None
        self.begun = self.begun or self.known.status.in_transaction(self.connection) is True

    def set_savepoint(self, name: str, mark: Mark) -> None:
        """Record a savepoint that the program has set on it."""
        self.savepoints = (*self.savepoints, (name, mark))

    def keep_savepoints(self, number: int) -> None:
        """Forget the savepoints nested in the first ones."""
        self.savepoints = self.savepoints[:number]

    def row_lock(self, plan: LockPlan) -> LockOptions:
        """Return the lock that a SELECT must contain here to give the requested one."""
        if plan.level is None or plan.level == self.level:
            return plan.row_lock
        return lock_in_select(plan.strategy.statements, plan.lock, self.level)


class TransactionConnections:
    """The connections of one session's transaction, by engine.

    :ivar by_engine: the connections that have begun their part of the transaction.
    :ivar reads_snapshot: a SnapshotRead has opened the transaction, or a part of it.
    :ivar root: the outermost transaction of the session, which knows who owns its connections.
    :ivar foreign_statements: the number of foreign statements in this transaction.
    """

    reads_snapshot = False
    root: SessionTransaction | None = None
    foreign_statements = 0
    _rolled_back_by_lender: tuple[Connection | TwoPhaseTransaction, ...] = ()

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session
        self.by_engine: dict[Engine, TransactionConnection] = {}

    def add(self, connection: Connection, known: LockStrategy | None) -> None:
        """Add a connection that has begun its part of the transaction, or a savepoint in it.

        :param known: of its database, if known already.
        """
        if connection.engine not in self.by_engine:
            if self.root is None:  # an interruption came before the event of its BEGIN
                self.root = self._session().get_transaction()
            known = known or find_strategy(connection)
            self.by_engine[connection.engine] = added = TransactionConnection(connection, known)
            if known is not None:
                if known.cluster is not None:
                    added.follow_cluster(known.cluster, self._session)
                if type(known.lifecycle).begun is not TransactionLifecycle.begun:  # saves two calls
                    known.lifecycle.begun(connection, lent=self.is_lent(connection))
        if self._session().in_nested_transaction():
            self.before_savepoint()

    def note_joined(self, joined: TransactionConnection, strategy: LockStrategy) -> None:
        """Record the facts that the first lock in an open transaction knows, and its begin did not."""
        if joined.known is None:  # the server could not be asked when it began
            joined.note_known(strategy, self._session)
        joined.note_level(self.current_level(joined), joined.foreign_asked)

    def note_foreign(self) -> None:
        """Record that a statement runs that may end the transaction, or change its level."""
        self.foreign_statements += 1

    def before_savepoint(self) -> None:
        """Send the statements that the databases need before a SAVEPOINT."""
        for joined in self.by_engine.values():
            if joined.known is not None:
                joined.known.lifecycle.before_savepoint(joined.connection)
                joined.note_begin()

    def find(self, connection: Connection) -> TransactionConnection | None:
        """Return the state of this connection, if it takes part in the transaction."""
        return self.by_engine.get(connection.engine)

    def all(self) -> list[Connection]:
        """Return the connections that have begun their part of the transaction."""
        return [joined.connection for joined in self.by_engine.values()]

    def is_lent(self, connection: Connection) -> bool:
        """Return whether something other than the session may end its transaction."""
        return self.root is None or not closes_connection(self.root, connection)

    def note_lender_rollback(self, connection: Connection, *_: Any) -> None:
        """Record that a lender's transaction, which the session has joined, was rolled back.

        Also for a two-phase transaction, whose rollback is statements.
        """
        ended, transaction = self._rolled_back_by_lender, connection.get_transaction()
        if self.is_lent(connection):
            self._rolled_back_by_lender = (*ended, connection)
        elif isinstance(transaction, TwoPhaseTransaction):
            self._rolled_back_by_lender = (*ended, transaction)

    def is_rolled_back_by_lender(self, connection: Connection) -> bool:
        """Return whether only the lender uses the connection now, or rolls back."""
        ended = self._rolled_back_by_lender
        return connection in ended or connection.get_transaction() in ended

    def commits_now(self) -> bool:
        """Return whether a COMMIT on a connection is the session's own, which has flushed for it."""
        root = self._session().get_transaction()
        return root is not None and not root.is_active

    def is_prepared(self) -> bool:
        """Return whether the first phase of the commit has ended, and the second has not begun."""
        between = self._session().twophase and self.commits_now()
        return between and all(connection.in_transaction() for connection in self.all())

    def prepared_locks(
        self, held: Mapping[DocumentKey, LockOptions]
    ) -> Mapping[DocumentKey, LockOptions]:
        """Return the locks that all databases keep after ``prepare()``, whatever was written."""
        if not self.is_prepared():
            return MappingProxyType({})
        known = [joined.known for joined in self.by_engine.values() if joined.known is not None]
        kept = frozenset(LockOptions).intersection(
            *(strategy.lifecycle.kept_by_prepare for strategy in known)
        )
        return MappingProxyType({key: lock for key, lock in held.items() if base_of(lock) in kept})

    def in_doubt(self) -> bool:
        """Return whether a foreign statement has run since the server was last asked."""
        return any(joined.in_doubt for joined in self.by_engine.values())

    def may_be_open(self) -> bool:
        """Return whether a transaction is open at a server, or may be."""
        return any(
            joined.known is None
            or joined.known.status.has_open_transaction(joined.connection) is not False
            for joined in self.by_engine.values()
            if not (joined.connection.closed or joined.connection.invalidated)
        )

    def invalidated(self) -> bool:
        """Return whether a connection to the server was lost."""
        return any(joined.connection.invalidated for joined in self.by_engine.values())

    def note_ended(self, connection: Connection | None) -> None:
        """Record that the transaction of this connection, or of all, has ended at the server."""
        for engine, joined in self.by_engine.items():
            if connection is None or joined.connection is connection:
                self.by_engine[engine] = joined.in_next_transaction()

    def aborted(self) -> bool:
        """Return whether the server would answer COMMIT by ROLLBACK; True if unknown."""
        return any(joined.is_aborted(unknown=True) for joined in self.by_engine.values())

    def refuse_write_in_snapshot(self) -> None:
        """:raises WrongIsolation: a SnapshotRead has opened the transaction."""
        for joined in self.by_engine.values():
            if joined.opened_for is LockOptions.SnapshotRead:
                raise WrongIsolation(
                    "a SnapshotRead has opened this transaction read-only; end it before you write"
                )

    def before_commit(self) -> None:
        """Register a ROLLBACK for the connection's return to the pool, in case COMMIT is never sent."""
        for joined in self.by_engine.values():
            if not (joined.connection.closed or joined.connection.invalidated):
                joined.on_return = actions_of(joined.connection)
                joined.on_return[ROLLBACK] = None

    def note_answered(self, *, committed: bool) -> None:
        """Record that all COMMITs or ROLLBACKs were answered; the connections return next."""
        for joined in self.by_engine.values():
            if committed and joined.on_return is not None:
                joined.on_return.pop(ROLLBACK, None)
            status = None if joined.known is None else joined.known.status
            if status is not None and type(status).is_idle is not TransactionStatus.is_idle:
                self._note_idle(joined.connection, status)

    def _note_idle(self, connection: Connection, status: TransactionStatus) -> None:
        if not (
            connection.closed
            or connection.invalidated
            or connection.in_transaction()
            or self.is_lent(connection)
        ):
            note_ended(connection, status.is_idle)

    def is_level_in_doubt(self, joined: TransactionConnection) -> bool:
        """Return whether foreign statements have run since the level was last known."""
        return joined.foreign_asked != self.foreign_statements

    def note_level(self, joined: TransactionConnection, level: str | None) -> None:
        """Record the isolation level of the connection's open transaction."""
        joined.note_level(level, self.foreign_statements)

    def current_level(self, joined: TransactionConnection) -> str | None:
        """Return the isolation level of the connection's open transaction.

        If a foreign statement may have changed it, ask the server: a list of such statements would
        be incomplete.
        """
        if self.is_level_in_doubt(joined) and joined.known is not None:
            self.note_level(joined, joined.ask_level() or joined.level)
        return joined.level or level_of(joined.connection)

    def restore(self) -> None:
        """Restore a lent connection's settings, and return the others to their pool."""
        for joined in self.by_engine.values():
            connection, level = joined.connection, joined.level_before
            if joined.listeners:
                joined.stop_listening()
            if connection.closed or connection.invalidated:
                continue
            if not self.is_lent(connection):  # an interruption came before
                _restore(connection, connection.close)
                continue
            if not connection.in_transaction():  # otherwise the lender's transaction continues
                execute_statements_now(connection)
            if level is not None and not connection.invalidated:
                _restore(connection, partial(connection.execution_options, isolation_level=level))


connections_of: Final[Callable[[Session], TransactionConnections]] = attrgetter(
    "_context.transaction.connections"
)
"""Return the connections of a session's transaction."""


def _restore(connection: Connection, restore: Callable[[], object]) -> None:
    """Call the function; if it fails, invalidate the connection instead of raising."""
    try:
        restore()
    except Exception as error:  # noqa: BLE001  # the transaction has ended well or not; this has not
        connection.invalidate(error)
