"""The state of an audit while it watches a process: sessions, connections and objects."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Dialect
from sqlalchemy.orm import InstanceState, Session

from sa_doclock.dialects.base import IsolationLevels, PlainReads
from sa_doclock.testing.instruments import locks_database, strategy_class

from .inserts import InsertRace
from .lock_order import LockOrder
from .places import NOWHERE, Place, Places, places_of_program, waiting_places
from .rows import ByObject, Row
from .rules import (
    DetailWithoutHeader,
    LockWithoutEffect,
    LongHold,
    LostUpdate,
    Rule,
    StaleAfterLock,
)
from .sent import Sent
from .transactions import (
    ConnectionSeen,
    Protection,
    Read,
    RowLock,
    SessionSeen,
    Transaction,
    Waiting,
    Write,
)

# Threads: the audit's listeners run in one thread at a time.
_levels: WeakKeyDictionary[Dialect, dict[str, Protection]] = WeakKeyDictionary()
_NEW_SNAPSHOTS: Final = frozenset({"READ COMMITTED", "READ UNCOMMITTED"})


def _protected_by(connection: Connection, level: str) -> Protection:
    """Return the conflicts that the database prevents at this level; nothing is sent.

    SQLite's driver begins no transaction for a SELECT, whatever the level is called.
    """
    known = _levels.setdefault(connection.dialect, {})
    if level not in known:
        name = level.replace("_", " ").upper()
        strategy = strategy_class(connection.dialect)
        levels = IsolationLevels if strategy is None else strategy(connection.dialect).isolation
        known[level] = Protection(
            finds_conflicts=PlainReads.CONFLICT in levels.plain_reads.get(name, PlainReads(0)),
            excludes_inserts=name == "SERIALIZABLE" and not locks_database(connection),
            joins_statements=name not in _NEW_SNAPSHOTS,
        )
    return known[level]


def _level_of(connection: Connection) -> str:
    """Return the isolation level as the program spells it, or "" if unknown."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "")


def commits_each_statement(connection: Connection) -> bool:
    """Return whether a lock of this connection ends with its statement."""
    if _level_of(connection).upper() == "AUTOCOMMIT":
        return True
    try:
        dbapi: Any = connection.connection.dbapi_connection
        return connection.dialect.detect_autocommit_setting(dbapi)
    except (AttributeError, NotImplementedError):
        return False  # an older SQLAlchemy, or a driver that does not report it


_SHORT: Final = 0.05  # seconds without a statement; the rules ignore shorter gaps


class Rules:
    """One rule of each code."""

    def __init__(self, hold_limit: float) -> None:
        self.lost_update, self.headers, self.orders = (
            LostUpdate(),
            DetailWithoutHeader(),
            LockOrder(),
        )
        self.effects, self.stale, self.inserts = LockWithoutEffect(), StaleAfterLock(), InsertRace()
        self.holds = LongHold(hold_limit)

    def __iter__(self) -> Iterator[Rule]:
        yield from (self.lost_update, self.headers, self.orders, self.effects)
        yield from (self.stale, self.inserts, self.holds)

    def wrote(self, transaction: Transaction, write: Write) -> None:
        """Pass on a row that a flush wrote, before the transaction has its lock."""
        self.lost_update.wrote(transaction, write)
        self.headers.wrote(transaction, write)
        self.stale.wrote(transaction, write)
        self.inserts.wrote(transaction, write)


class Watched:
    """The transactions of sessions and connections; passes their actions to the rules.

    It holds sessions, connections and objects weakly, and the rows of a transaction until its end.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.reads: ByObject[InstanceState[Any], Read] = ByObject()
        self.refreshed: ByObject[InstanceState[Any], dict[str, Read]] = ByObject()
        """Attributes that were refreshed without the whole row."""
        self.assigned: ByObject[InstanceState[Any], dict[str, Places]] = ByObject()
        self.added: ByObject[InstanceState[Any], Places] = ByObject()
        self.statements = self.transactions = self.rows_left_out = self.failures = 0
        self.first_failure = ""
        self._mutex = threading.RLock()
        self.sessions: dict[int | None, SessionSeen] = {}  # by the number that its objects know
        self._connections: ByObject[Connection, ConnectionSeen] = ByObject()

    def guarded(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Return the listener, run by one thread at a time, and never raising."""
        mutex = self._mutex

        def run(*arguments: Any) -> Any:
            try:
                with mutex:
                    return listener(*arguments)
            except Exception:  # noqa: BLE001  # an error of the audit must not reach the program
                self.failures += 1
                self.first_failure = self.first_failure or traceback.format_exc()
                return None

        return run

    def session(self, session: Session) -> SessionSeen:
        """Return the state of a session."""
        number = session.hash_key
        found = self.sessions.get(number)
        if found is None:
            forget = self.sessions.pop
            session_seen = ref(session, lambda _: forget(number, None))
            found = self.sessions[number] = SessionSeen(session_seen)
        return found

    def of_object(self, state: InstanceState[Any]) -> SessionSeen | None:
        """Return the known state of an object's session."""
        found = self.sessions.get(state.session_id)
        if found is None and (session := state.session) is not None:
            found = self.session(session)
        return found

    def seen(self, connection: Connection) -> ConnectionSeen:
        """Return the known state of a connection."""
        found = self._connections.get(ref(connection))
        if found is None:
            found = ConnectionSeen()
            self._connections.put(connection, found)
        return found

    def use(self, connection: Connection, session: SessionSeen) -> None:
        """Attribute the statements of a connection to a session, until its transaction ends."""
        seen = self.seen(connection)
        if seen.user is not session:
            if seen.user is None and seen.transaction is None:
                self.transactions += 1
                session.transaction.protect(_protected_by(connection, _level_of(connection)))
            else:
                session.transaction.join(self.transaction_of(connection))
            seen.user = session
            session.connections.append(seen)

    def end_session(self, session: Session) -> None:
        """End the session's transaction."""
        ended = self.sessions.pop(session.hash_key, None)
        if ended is not None:
            self.measure_idle(ended.transaction)
            for seen in ended.connections:
                if seen.user is ended:
                    seen.user = None
            ended.transaction.end(committed=ended.committed)

    def end(self, committed: bool, connection: Connection, *_: object) -> None:
        """End the connection's transaction; a session's transaction ends with the session."""
        seen = self.seen(connection)
        found, seen.transaction = seen.transaction, None
        current = found if seen.user is None else seen.user.transaction
        if current is not None:
            self.measure_idle(current)
        if found is not None:
            found.end(committed=committed)

    def transaction_of(self, connection: Connection) -> Transaction:
        """Return the transaction of the connection's next statement."""
        seen = self._connections.get(ref(connection)) or self.seen(connection)
        if seen.user is not None:
            return seen.user.transaction
        if seen.transaction is None:
            self.transactions += 1
            seen.transaction = Transaction(_protected_by(connection, _level_of(connection)))
        return seen.transaction

    def note_wide_lock(self, connection: Connection, sent: Sent) -> None:
        """Note a lock that is not on rows; the next session on this connection also holds it."""
        begins = sent.begins and locks_database(connection)
        for transaction in self._transactions_on(connection):
            transaction.protect(Protection(begins, begins))
            transaction.has_wide_lock |= sent.locks_widely or sent.locks_file
            transaction.has_gate |= sent.locks_widely
            transaction.has_file_lock |= sent.locks_file
            if transaction.has_wide_lock:
                transaction.first_lock = transaction.first_lock or here()

    def note_level(self, connection: Connection, level: str) -> None:
        """Note the isolation level that a statement sets for the transaction."""
        for transaction in self._transactions_on(connection):
            transaction.protection = _protected_by(connection, level)

    def _transactions_on(self, connection: Connection) -> Iterator[Transaction]:
        yield self.transaction_of(connection)
        own = self.seen(connection).transaction
        if own is not None:
            yield own

    def measure_idle(self, transaction: Transaction) -> None:
        """Notify the rules if no statement has run for long."""
        waiting = transaction.waiting
        if waiting is None:
            return
        transaction.waiting = None
        seconds = time.perf_counter() - waiting.since
        if waiting.place is not None or seconds > _SHORT:
            place = waiting.place or here()
            seen = waiting.place is not None
            self.rules.holds.was_idle(transaction, seconds, place, seen=seen)

    def begin_idle(self, connection: Connection, *_: object) -> None:
        """Start measuring how long the connection's transaction runs no statement."""
        seen = self.seen(connection)
        transaction = seen.transaction if seen.user is None else seen.user.transaction
        if transaction is None:
            return
        try:
            task = asyncio.current_task()
        except RuntimeError:  # this thread runs no event loop
            task = None
        transaction.waiting = Waiting(
            time.perf_counter(), threading.get_ident(), task and ref(task)
        )

    def note_waiting(self, seconds: float) -> None:
        """Note the waiting line of each transaction that has been idle for this long."""
        now = time.perf_counter()
        of_sessions = [one.transaction for one in self.sessions.values()]
        for transaction in (*of_sessions, *(one.transaction for one in self._connections.values())):
            waiting = None if transaction is None else transaction.waiting
            if waiting is not None and now - waiting.since > seconds:
                (place, *_) = waiting_places(waiting.thread, waiting.task and waiting.task())
                waiting.place = waiting.place if place == NOWHERE[0] else place

    def acquire(self, transaction: Transaction, row: Row, lock: RowLock) -> None:
        """Note a lock, unless the transaction holds it already or inserted the row itself."""
        if row in transaction.locks or row in transaction.inserted:
            return
        if not transaction.has_room():
            self.rows_left_out += 1
            return
        self.rules.orders.locked(transaction, row, lock)
        transaction.locks[row] = lock
        transaction.first_lock = transaction.first_lock or lock.place


def here() -> Place:
    """Return the line of the program that is executing."""
    return places_of_program()[0]
