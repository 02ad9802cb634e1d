"""All that an audit remembers of the process while it watches: sessions, connections and objects."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from sqlalchemy import Connection, Dialect
from sqlalchemy.orm import InstanceState, Session

from sa_doclock.dialects.base import IsolationLevels, PlainReads
from sa_doclock.testing.instruments import is_flushing, locks_database, strategy_class

from .places import NOWHERE, Place, Places, places_of_program, waiting_places
from .rows import Row
from .rules import Rule
from .sent import Sent
from .transactions import Read, RowLock, SessionSeen, Transaction, Waiting

# Threads: the audit's listeners run in one thread at a time.
_conflicting: WeakKeyDictionary[Dialect, frozenset[str]] = WeakKeyDictionary()


def finds_conflicts(connection: Connection, level: str | None = None) -> bool:
    """Return whether the database refuses to overwrite what has changed since it was read.

    Nothing is sent.

    :param level: of the transaction; by default that of the connection's options, or the engine's.
    """
    dialect = connection.dialect
    if dialect not in _conflicting:
        known = strategy_class(dialect)
        levels = IsolationLevels if known is None else known(dialect).isolation
        _conflicting[dialect] = frozenset(
            level for level, reads in levels.plain_reads.items() if PlainReads.CONFLICT in reads
        )
    return (level or level_of(connection)) in _conflicting[dialect]


def excludes_inserts(connection: Connection, level: str | None = None) -> bool:
    """Return whether the database refuses to add a row that a SELECT of the transaction has missed.

    The driver of SQLite begins no transaction for a SELECT, whatever the level is called.
    """
    return (level or level_of(connection)) == "SERIALIZABLE" and not locks_database(connection)


def level_of(connection: Connection) -> str:
    """Return the isolation level in upper case, empty where it is not known."""
    level = connection.get_execution_options().get("isolation_level")
    return str(level or connection.default_isolation_level or "").replace("_", " ").upper()


def commits_each_statement(connection: Connection) -> bool:
    """Return whether a lock of this connection ends with its statement."""
    if level_of(connection) == "AUTOCOMMIT":
        return True
    try:
        dbapi: Any = connection.connection.dbapi_connection
        return connection.dialect.detect_autocommit_setting(dbapi)
    except (AttributeError, NotImplementedError):
        return False  # an older SQLAlchemy, or a driver that cannot tell


_SHORT: Final = 0.05  # seconds without a statement that no rule hears of


class Watched:
    """The transactions of sessions and connections; it tells the rules what they do.

    Sessions, connections and objects are held weakly, and the rows of a transaction until its end.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.of_reads = [one for one in rules if type(one).read_table is not Rule.read_table]
        self.reads: WeakKeyDictionary[InstanceState[Any], Read] = WeakKeyDictionary()
        self.refreshed: WeakKeyDictionary[InstanceState[Any], dict[str, Read]] = WeakKeyDictionary()
        """Attributes that were read again, and not the whole row."""
        self.assigned: WeakKeyDictionary[InstanceState[Any], dict[str, Places]] = (
            WeakKeyDictionary()
        )
        self.added: WeakKeyDictionary[InstanceState[Any], Places] = WeakKeyDictionary()
        self.statements = self.transactions = self.rows_left_out = self.failures = 0
        self.first_failure = ""
        self._mutex = threading.RLock()
        self._sessions: WeakKeyDictionary[Session, SessionSeen] = WeakKeyDictionary()
        self._connections: WeakKeyDictionary[Connection, Transaction] = WeakKeyDictionary()
        #: The session of the last object, by its number: most are of the same one.
        self._last: dict[int | None, SessionSeen] = {}
        #: The sessions whose statements the connections send.
        self.users: WeakKeyDictionary[Connection, SessionSeen] = WeakKeyDictionary()

    def guarded(self, listener: Callable[..., Any]) -> Callable[..., Any]:
        """Return the listener, which one thread runs at a time, and which never raises."""

        def run(*arguments: Any) -> Any:
            try:
                with self._mutex:
                    return listener(*arguments)
            except Exception:  # noqa: BLE001  # an error of the audit is no error of the program
                self.failures += 1
                self.first_failure = self.first_failure or traceback.format_exc()
                return None

        return run

    def session(self, session: Session) -> SessionSeen:
        """Return what is known of a session."""
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = SessionSeen(session)
        return found

    def of_object(self, state: InstanceState[Any]) -> SessionSeen | None:
        """Return what is known of the session of an object."""
        found = self._last.get(state.session_id)
        if found is None and (session := state.session) is not None:
            found = self.session(session)
            self._last = {state.session_id: found}
        return found

    def use(self, connection: Connection, seen: SessionSeen) -> None:
        """Give the statements of a connection to a session, until its transaction ends."""
        if self.users.get(connection) is not seen:
            seen.transaction.join(self.transaction_of(connection))
            self.users[connection] = seen
            seen.connections.append(connection)

    def end_session(self, seen: SessionSeen) -> None:
        """End the session's transaction."""
        self.measure_idle(seen.transaction)
        self._last.clear()
        for connection in seen.connections:
            if self.users.get(connection) is seen:
                del self.users[connection]
        seen.end()

    def begin(self, connection: Connection) -> Transaction:
        """Begin a transaction of a connection."""
        self.transactions += 1
        found = Transaction(
            finds_conflicts=finds_conflicts(connection),
            excludes_inserts=excludes_inserts(connection),
        )
        self._connections[connection] = found
        return found

    def end(self, connection: Connection, *, committed: bool) -> None:
        """End the transaction of a connection; that of a session ends with the session's."""
        self.measure_idle(self.transaction_of(connection))
        found = self._connections.pop(connection, None)
        if found is not None:
            found.end(committed=committed)

    def transaction_of(self, connection: Connection) -> Transaction:
        """Return the transaction that the connection's next statement belongs to."""
        user = self.users.get(connection)
        if user is not None:
            return user.transaction
        # Not there: in autocommit, or begun before the audit.
        return self._connections.get(connection) or self.begin(connection)

    def note_wide_lock(self, connection: Connection, sent: Sent) -> None:
        """Note a lock that is not of rows; the next session on this connection has it too."""
        begins = sent.begins and locks_database(connection)
        for transaction in self._transactions_on(connection):
            transaction.finds_conflicts |= begins
            transaction.excludes_inserts |= begins
            transaction.has_wide_lock |= sent.locks_widely or sent.locks_file
            transaction.has_gate |= sent.locks_widely
            transaction.has_file_lock |= sent.locks_file
            if transaction.has_wide_lock:
                transaction.first_lock = transaction.first_lock or here()

    def note_level(self, connection: Connection, level: str) -> None:
        """Note the isolation level that a statement gives the transaction."""
        for transaction in self._transactions_on(connection):
            transaction.finds_conflicts = finds_conflicts(connection, level)
            transaction.excludes_inserts = excludes_inserts(connection, level)

    def _transactions_on(self, connection: Connection) -> Iterator[Transaction]:
        """Yield the session's transaction on this connection, and the connection's own."""
        yield self.transaction_of(connection)
        if connection in self._connections:
            yield self._connections[connection]

    def is_in_flush(self, connection: Connection) -> bool:
        """Return whether a flush sends what this connection sends."""
        user = self.users.get(connection)
        session = None if user is None or user.flush is None else user.session()
        return session is not None and is_flushing(session)

    def measure_idle(self, transaction: Transaction) -> None:
        """Tell the rules if no statement has run for long."""
        waiting, transaction.waiting = transaction.waiting, None
        seconds = 0.0 if waiting is None else time.perf_counter() - waiting.since
        if waiting is not None and (waiting.place is not None or seconds > _SHORT):
            place = waiting.place or here()
            for rule in self.rules:
                rule.was_idle(transaction, seconds, place, seen=waiting.place is not None)

    def begin_idle(self, transaction: Transaction) -> None:
        """Begin to measure how long no statement runs."""
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        of_task = None if task is None else ref(task)
        transaction.waiting = Waiting(time.perf_counter(), threading.get_ident(), of_task)

    def note_waiting(self, seconds: float) -> None:
        """Note under which line each transaction waits that has been idle for that long."""
        now = time.perf_counter()
        of_sessions = [one.transaction for one in self._sessions.values()]
        for transaction in (*of_sessions, *self._connections.values()):
            waiting = transaction.waiting
            if waiting is not None and now - waiting.since > seconds:
                (place, *_) = waiting_places(waiting.thread, waiting.task and waiting.task())
                waiting.place = waiting.place if place == NOWHERE[0] else place

    def acquire(self, transaction: Transaction, row: Row, lock: RowLock) -> None:
        """Note a lock, unless the transaction has it; a row that it has inserted is its own."""
        if row in transaction.locks or row in transaction.inserted:
            return
        if not transaction.has_room():
            self.rows_left_out += 1
            return
        for rule in self.rules:
            rule.locked(transaction, row, lock)
        transaction.locks[row] = lock if lock.number else replace(lock, number=self.statements)
        transaction.first_lock = transaction.first_lock or lock.place


def here() -> Place:
    """Return the line of the program that is being executed."""
    return places_of_program()[0]
