"""The connections of a session's transaction, and how each is made fit for a lock.

The isolation level of a lock is set before its transaction starts.  Afterwards SQLAlchemy
only warns, and the server goes on reading as it did.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ReferenceType

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session
from sqlalchemy.util import immutabledict

from ...dialects import (
    find_strategy,
    is_rolled_back_later,
    strategy_for,
    wrapped_error,
)
from ...dialects.base import AUTOCOMMIT, Cluster, LockStrategy
from ...errors import LockNotSupported, WrongIsolation
from ...options import LockOptions, base_of
from ..ledger import Ledger
from ..pool import (
    GUARD_ISOLATION_LEVEL,
    ROLLBACK,
    actions_of,
    execute_statements_now,
    note_ended,
    on_return,
)
from ..sqlalchemy_internals import closes_connection
from .connection import TransactionConnection
from .connection_events import ConnectionEvents, Mark, TransactionFollower
from .first_use import FirstUse
from .plan import LockPlan

ISOLATION = "isolation_level"

# Not SET SESSION ..: the transaction that is open keeps its level.
_SETS_LEVEL = re.compile(
    r"\s*SET\s+(?:LOCAL\s+)?TRANSACTION\s.*?ISOLATION\s+LEVEL\s+"
    r"(READ\s+UNCOMMITTED|READ\s+COMMITTED|REPEATABLE\s+READ|SERIALIZABLE|SNAPSHOT)\b",
    re.IGNORECASE | re.DOTALL,
)


def level_of(bind: Engine | Connection) -> str | None:
    """Return the isolation level as SQLAlchemy set it, or else the server's default."""
    chosen = bind.get_execution_options().get(ISOLATION)
    # A dialect that has not connected yet has no such attribute.  Only SQLite can be met
    # like that, which has one level.
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    return str(chosen) if chosen else default


def _level_before(
    session: Session, bind: Engine | Connection, strategy: LockStrategy
) -> str | None:
    """Return the level that the session's transaction would have without a lock.

    :raises LockNotSupported: AUTOCOMMIT, which ends every lock with its statement.
    """
    # Session(execution_options=...) came with SQLAlchemy 2.1
    of_session = getattr(session, "execution_options", {}).get(ISOLATION)
    chosen = of_session or bind.get_execution_options().get(ISOLATION)
    default: str | None = getattr(bind.dialect, "default_isolation_level", None)
    level = str(chosen) if chosen else default
    if level == "AUTOCOMMIT" or (strategy.autocommit_by_default and not chosen):
        raise LockNotSupported(AUTOCOMMIT)
    return level


class _OpeningLevel(NamedTuple):
    """The isolation level of a transaction that is opened for a lock.

    :ivar before: the one that it would have without the lock.
    :ivar option: the one that SQLAlchemy sets on the connection; None: it sets none.
    :ivar once: the one that the dialect sets for this transaction alone; None: it sets none.
    """

    before: str | None
    option: str | None = None
    once: str | None = None


def _opening_level(
    session: Session, bind: Engine | Connection, strategy: LockStrategy, plan: LockPlan
) -> _OpeningLevel:
    """Return the level of the transaction; nothing is set where its own protects a document too.

    :raises LockNotSupported: AUTOCOMMIT, which ends every lock with its statement.
    """
    level, wanted = _level_before(session, bind, strategy), plan.level
    if wanted == level or level in strategy.isolation.kept.get(base_of(plan.lock), ()):
        return _OpeningLevel(level)
    if strategy.isolation.sets_once and not session.twophase:  # XA START begins at once
        return _OpeningLevel(level, once=wanted)
    return _OpeningLevel(level, wanted)


class TransactionConnections:
    """The connections of one session's transaction, by engine.

    :param ledger: the locks that are held on them.
    :param follower: is told what the program does with one of them.
    """

    reads_snapshot = False
    """True if a SnapshotRead has opened the transaction, or a part of it."""

    level_by_text: str | None = None
    """The isolation level that a text() of the program has set for this transaction."""

    commits_now = False
    """True from the start of the session's own commit to its end."""

    def __init__(
        self,
        session: Callable[[], Session],
        ledger: Ledger,
        follower: ReferenceType[TransactionFollower],
    ) -> None:
        self._session, self._ledger, self._follower = session, ledger, follower
        self._by_engine: dict[Engine, TransactionConnection] = {}
        self.connecting = 0.0
        """Seconds that were spent on connecting and on the pool, which are no wait for a lock."""

    @FirstUse
    def _events(self) -> dict[TransactionConnection, ConnectionEvents]:
        """The events of those that the program has in hand."""
        return {}

    def add(self, connection: Connection, known: LockStrategy | None) -> None:
        """Note a connection that has begun its part of the transaction, or a savepoint in it.

        :param known: of its database, where that was asked before.
        """
        if connection.engine not in self._by_engine:
            known = known or find_strategy(connection)
            self._by_engine[connection.engine] = added = TransactionConnection(connection, known)
            if known is not None and (known.cluster is not None or known.lifecycle.begins_at_once):
                self._note_begin(added, known)
        if self._session().in_nested_transaction():
            self.before_savepoint()

    def _note_begin(self, one: TransactionConnection, known: LockStrategy) -> None:
        """Do what some databases need where a transaction begins."""
        if known.cluster is not None:
            self._listen_for_cluster(one, known.cluster)
        if known.lifecycle.begins_at_once and not self.is_lent(one.connection):
            known.lifecycle.begin_now(one.connection)

    def _listen_for_cluster(self, one: TransactionConnection, cluster: Cluster) -> None:
        """Have the end of a transaction by another node of the cluster noticed."""
        one.listened = True
        event.listen(one.connection, "rollback", cluster.before_rollback)
        event.listen(one.connection, "savepoint", self._before_savepoint)

    def watch(self, one: TransactionConnection, *, lent: bool = False) -> None:
        """Follow what the program does with this connection."""
        if one not in self._events:
            one.listened = True
            self._events[one] = ConnectionEvents(self._follower, self._ledger, one, lent=lent)

    def watch_connection(self, connection: Connection) -> None:
        """Follow what the program does with this connection, which it has been given."""
        found = self._by_engine.get(connection.engine)
        if found is None:
            return
        if found.connection is connection:
            self.watch(found)
        if self._ledger.counts_on_transaction(found.known):
            found.before_foreign()  # a cursor of the driver's own is not seen

    def watch_all(self) -> None:
        """Follow all of them: a statement of the program's own may end the transaction."""
        for one in self._by_engine.values():
            self.watch(one)

    def note_text(self, text: str) -> None:
        """Note the isolation level that such a statement sets for the transaction."""
        found = _SETS_LEVEL.match(text)
        if found is None:
            return
        self.level_by_text = " ".join(found[1].upper().split())
        for one in self._by_engine.values():
            if one.level is not None and one.strategy.isolation.changes_at_once:
                one.level = self.level_by_text

    def savepoint_of(self, connection: Connection) -> tuple[str, Mark] | None:
        """Return the innermost savepoint that the program has set on this connection itself."""
        found = self._by_engine.get(connection.engine)
        events = None if found is None else self._events.get(found)
        return None if events is None else events.innermost

    def before_savepoint(self) -> None:
        """Send what the databases need in front of a SAVEPOINT."""
        for one in self._by_engine.values():
            if one.known is not None:
                one.known.lifecycle.before_savepoint(one.connection)
                one.begun = one.begun or one.known.status.in_transaction(one.connection) is True

    def _before_savepoint(self, connection: Connection, _name: str) -> None:
        """Raise in front of a SAVEPOINT, if another node has ended the transaction with its locks."""
        known = self._by_engine[connection.engine].known
        cluster = None if known is None else known.cluster
        if cluster is not None and not self._ledger.empty:
            cluster.before_savepoint(connection)

    def find(self, connection: Connection) -> TransactionConnection | None:
        """Return what is known of this connection, if it takes part in the transaction."""
        return self._by_engine.get(connection.engine)

    def all(self) -> list[Connection]:
        """Return those that have begun their part of the transaction."""
        return [one.connection for one in self._by_engine.values()]

    def is_lent(self, connection: Connection) -> bool:
        """Return whether its transaction may be ended by another than the session."""
        transaction = self._session().get_transaction()
        return transaction is None or not closes_connection(transaction, connection)

    def have_ended(self, *, ask: bool = True) -> bool:
        """Return whether the transaction of the locks has ended at one of the servers.

        This is the one place where the ledger is compared with the connection's own word, and after
        a foreign statement with the server's: before each lock, flush and commit, and when
        held_locks is read.  ``ConnectionEvents`` and ``_translate()`` ask what a driver knows only
        after a statement or an error.

        :param ask: ask the server, where a foreign statement has run since it was last asked.
        """
        for one in self._by_engine.values():
            if one.driver_knows_end():
                return True
            if ask and one.in_doubt and one.transaction_has_changed():
                return True
        return False

    def in_doubt(self) -> bool:
        """Return whether a foreign statement has run since the server was last asked."""
        return any(one.in_doubt for one in self._by_engine.values())

    def may_be_open(self) -> bool:
        """Return whether a transaction is open at a server, or nobody can tell."""
        return any(
            one.known is None or one.known.status.has_open_transaction(one.connection) is not False
            for one in self._by_engine.values()
            if not (one.connection.closed or one.connection.invalidated)
        )

    def invalidated(self) -> bool:
        """Return whether a connection to the server was lost."""
        return any(one.connection.invalidated for one in self._by_engine.values())

    def has_begun(self, connection: Connection) -> bool:
        """Return whether the driver of this connection must know an open transaction."""
        found = self._by_engine.get(connection.engine)
        return found is not None and found.begun

    def note_ended(self, connection: Connection | None) -> None:
        """Note that the transaction of this connection, or of all, has ended at the server."""
        for one in self._by_engine.values():
            if connection is None or one.connection is connection:
                one.note_ended()

    def aborted(self) -> bool:
        """Return whether the server would answer COMMIT by ROLLBACK; where none can tell, True."""
        return any(
            one.known is not None
            and one.known.errors.aborts_on_error
            and one.known.status.is_aborted(one.connection) is not False
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
        """Note the start of the commit; have a ROLLBACK sent later for a COMMIT that is not sent."""
        self.commits_now = True
        for one in self._by_engine.values():
            if not (one.connection.closed or one.connection.invalidated):
                one.on_return = actions_of(one.connection)
                one.on_return[ROLLBACK] = None

    def after_commit(self) -> None:
        """Note that all of them have committed."""
        for one in self._by_engine.values():
            if one.on_return is not None:
                one.on_return.pop(ROLLBACK, None)
            if one.known is not None and one.known.status.reports_idle:
                self._note_idle(one.connection, one.known)

    def note_server_idle(self) -> None:
        """Note that ROLLBACK was answered, and that the connections go back next."""
        for one in self._by_engine.values():
            if one.known is not None and one.known.status.reports_idle:
                self._note_idle(one.connection, one.known)

    def _note_idle(self, connection: Connection, known: LockStrategy) -> None:
        if not (
            connection.closed
            or connection.invalidated
            or connection.in_transaction()
            or self.is_lent(connection)
        ):
            note_ended(connection, known.status.is_idle)

    def now(self) -> float:
        """Return the time by a clock that stands still while the session connects."""
        return time.monotonic() - self.connecting

    def learn(self, bind: Engine | Connection) -> LockStrategy:
        """Return the dialect of a database that was not asked before, for which it may connect."""
        started = time.monotonic()
        strategy = strategy_for(bind)
        self.connecting += time.monotonic() - started
        return strategy

    def prepare(
        self,
        bind: Engine | Connection,
        strategy: LockStrategy,
        plan: LockPlan,
        seconds: float | None,
        *,
        upgrades: bool = False,
    ) -> TransactionConnection:
        """Return the connection to take this lock on, its transaction fit for it.

        :param bind: what ``get_bind()`` has returned; a program's own may answer another time
            with another database.
        :param upgrades: ForUpdate may follow a SharedRead that has opened the transaction.
        :raises WrongIsolation: the transaction is open already, and is not fit.
        :raises LockNotSupported: AUTOCOMMIT.
        """
        known = self._by_engine.get(bind.engine)
        if known is not None or (isinstance(bind, Connection) and bind.in_transaction()):
            return self._join(known, bind, strategy, plan, seconds, upgrades=upgrades)
        level = _opening_level(self._session(), bind, strategy, plan)
        self._begin(bind, level.option)
        opened = self._by_engine[bind.engine]
        opened.level = level.option or level.once or level.before
        if level.option is not None:
            on_return(opened.connection, GUARD_ISOLATION_LEVEL)
            opened.level_before = level.before if isinstance(bind, Connection) else None
        self._open(opened, bind, strategy, plan, seconds, level.once)
        return opened

    def _begin(self, bind: Engine | Connection, level: str | None) -> None:
        """Connect, and begin the transaction of the session on this connection.

        :param level: the isolation level to set; None to leave it as it is.
        """
        session, started = self._session(), time.monotonic()
        options = None if level is None else immutabledict({ISOLATION: level})
        try:
            if session.in_nested_transaction():  # what must come first comes before the SAVEPOINT
                root = session.get_transaction()
                assert root is not None
                root.connection(None, execution_options=options, bind=bind)
            else:
                Session.connection(session, {"bind": bind}, options)
        except Exception as error:
            driver_error: Any = bind.dialect.loaded_dbapi.Error
            if isinstance(error, driver_error):
                # Setting the level of a connection that died in the pool is the one statement whose
                # error SQLAlchemy does not wrap.
                raise wrapped_error(error, bind.dialect, f"SET {ISOLATION}") from error
            raise
        self.connecting += time.monotonic() - started

    def _open(
        self,
        opened: TransactionConnection,
        bind: Engine | Connection,
        strategy: LockStrategy,
        plan: LockPlan,
        seconds: float | None,
        level_once: str | None,
    ) -> None:
        """Send what must come first in a transaction that is opened for this lock."""
        strategy.check_autocommit(opened.connection)
        if level_once is not None:
            strategy.isolation.set_once(opened.connection, level_once)
        opened.begun = False  # a BEGIN in front of a savepoint may be taken back
        strategy.begin(opened.connection, plan.lock, seconds)
        opened.opened_for = plan.lock
        if plan.lock is LockOptions.SnapshotRead:
            self.reads_snapshot = True
        session = self._session()
        if session.in_nested_transaction():
            Session.connection(session, {"bind": bind})  # sends the SAVEPOINT

    def _join(
        self,
        known: TransactionConnection | None,
        bind: Engine | Connection,
        strategy: LockStrategy,
        plan: LockPlan,
        seconds: float | None,
        *,
        upgrades: bool,
    ) -> TransactionConnection:
        session = self._session()
        if known is None:
            assert isinstance(bind, Connection)
            strategy.lifecycle.before_savepoint(bind)  # the session may join by one
        if known is None or session.in_nested_transaction():
            # Joins the lent connection's transaction; sends the SAVEPOINT, if it is not yet
            # sent, in front of all that its rollback has to undo.
            Session.connection(session, {"bind": bind})
        joined = self._by_engine[bind.engine]
        if joined.level is None:
            self._note_joined(joined, strategy)
        strategy.check_autocommit(joined.connection)
        begins = known is None and is_rolled_back_later(joined.connection)
        if _take_in_open(joined, strategy, plan, seconds, begins=begins, upgrades=upgrades):
            joined.opened_for = plan.lock
            self.reads_snapshot = plan.lock is LockOptions.SnapshotRead or self.reads_snapshot
        return joined

    def _note_joined(self, joined: TransactionConnection, strategy: LockStrategy) -> None:
        """Note what the first lock in an open transaction knows more than the begin."""
        joined.level = self.current_level(joined)
        if joined.known is None:  # the server could not be asked when it began
            joined.known = strategy
            if strategy.cluster is not None:
                self._listen_for_cluster(joined, strategy.cluster)

    def current_level(self, joined: TransactionConnection) -> str | None:
        """Return the isolation level of the transaction that is open on this connection."""
        return joined.level or self.level_by_text or level_of(joined.connection)

    def close(self) -> None:
        """Forget the connections; put a lent one back to how it came."""
        self.reads_snapshot = self.commits_now = False
        self.level_by_text = None
        ended = list(self._by_engine.values())
        self._by_engine.clear()
        for one in ended:
            connection, level = one.connection, one.level_before
            if one.listened:
                self._stop_listening(one)
            if connection.closed or connection.invalidated:
                continue
            if not connection.in_transaction():  # else the lender's transaction goes on
                execute_statements_now(connection)
            if level is not None and not connection.invalidated:
                _set_level(connection, level)

    def _stop_listening(self, one: TransactionConnection) -> None:
        events = self._events.pop(one, None)
        if events is not None:
            events.remove()
        if one.known is not None and one.known.cluster is not None:
            event.remove(one.connection, "rollback", one.known.cluster.before_rollback)
            event.remove(one.connection, "savepoint", self._before_savepoint)


def _take_in_open(
    joined: TransactionConnection,
    strategy: LockStrategy,
    plan: LockPlan,
    seconds: float | None,
    *,
    begins: bool,
    upgrades: bool,
) -> bool:
    """Take the lock in the open transaction; return whether it counts as opened for this lock.

    :param begins: it is the transaction of a test, in which one of the session begins.
    """
    if begins and plan.lock is LockOptions.SnapshotRead:
        joined.level = plan.level  # a test reads it at the level that there is
        return True
    upgraded = upgrades and _is_upgrade(joined.opened_for, plan.lock)
    opened_for = None if upgraded else joined.opened_for  # None: as after any other read
    opens = strategy.join(
        joined.connection, plan.lock, seconds, joined.level, opened_for, plan.table
    )
    return opens or begins or upgraded


def _is_upgrade(opened_for: LockOptions | None, lock: LockOptions) -> bool:
    bases = base_of(opened_for or LockOptions.None_), base_of(lock)
    return bases == (LockOptions.SharedRead, LockOptions.ForUpdate)


def _set_level(connection: Connection, level: str) -> None:
    try:
        connection.execution_options(isolation_level=level)
    except Exception as error:  # noqa: BLE001  # the transaction has ended well or not; this has not
        connection.invalidate(error)  # the lender gets a new one
