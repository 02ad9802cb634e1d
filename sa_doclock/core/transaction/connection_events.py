"""The events of a Connection that the program may use directly.

By ``session.connection()``, or by lending its own, a program can end a transaction or a savepoint
on which the session relies.  A session with a Connection of its own pays nothing for this.

Foreign statements are those that SQLAlchemy does not build from constructs: ``text()``, DDL, a
procedure, ``exec_driver_sql()``, and statements of the driver's own cursor.  They may end the
transaction.
"""

from __future__ import annotations

import re
from typing import Any, Final
from weakref import ref

from sqlalchemy import CompoundSelect, Connection, Delete, Insert, Select, Update
from sqlalchemy.orm import FromStatement

from ...dialects import SavepointMarks
from ...dialects.base import EveryError
from ...sqlalchemy_internals import is_flushing, savepoint_on
from .context import LockContext
from .lock_transaction import LockTransaction
from .transaction_connection import Mark, TransactionConnection

SPACE: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*(?:\n|$))*"
"""A pattern for the text that may surround a statement, such as the comment that a listener adds,
for example OpenTelemetry's sqlcommenter.
"""

_BUILT: Final = (Select, CompoundSelect, Insert, Update, Delete)


def is_built(statement: object) -> bool:
    """Return whether this is a construct that can end no transaction."""
    if isinstance(statement, FromStatement):
        statement = statement.element
    return isinstance(statement, _BUILT)


def runs_built(context: Any) -> bool:
    """Return whether this executes a construct that can end no transaction.

    :param context: the ExecutionContext, or None.
    """
    compiled = getattr(context, "compiled", None)
    return compiled is not None and is_built(compiled.statement)


# Patterns as text: Python compiles each at its first use, and most programs use none.
# A list of statements that may commit would be incomplete: procedures, DDL, SET autocommit ...
_COMMITS_NOTHING: Final = (
    rf"(?i){SPACE}(?:SELECT|WITH|VALUES|INSERT|UPDATE|DELETE|MERGE|SAVE|RELEASE|ROLLBACK)"
)


def may_commit(statement: str) -> bool:
    """Return whether a foreign statement may be, or contain, a COMMIT."""
    commits = re.search(r"(?i)\bCOMMIT\b", statement)
    return bool(commits) or not re.match(_COMMITS_NOTHING, statement)


_WATCHING: Final = "watching"
_EVENTS: Final = (
    "before_cursor_execute",
    "after_cursor_execute",
    "prepare_twophase",
    "commit",
    "rollback",
    "commit_twophase",
    "rollback_twophase",
)
# SQLAlchemy's savepoint event comes before the savepoint has its name, and programs may write their
# own SAVEPOINT.  SQL Server has SAVE TRANSACTION, and ROLLBACK TRANSACTION with a name.
_SAVEPOINT: Final = (
    rf"(?i){SPACE}(SAVEPOINT|SAVE\s+TRAN\w*|RELEASE(?:\s+SAVEPOINT)?"
    r"|ROLLBACK(?:\s+(?:WORK|TRAN\w*))?(?:\s+TO(?:\s+SAVEPOINT)?)?)"
    rf"""\s+("(?:[^"]|"")+"|`(?:[^`]|``)+`|\[[^\]]+\]|(?!/\*|--)\S+?){SPACE}$"""
)


def watch(context: LockContext, joined: TransactionConnection) -> None:
    """Follow the program's use of this connection."""
    if not joined.is_listened(_WATCHING):
        lent = context.connections.is_lent(joined.connection)
        events = ConnectionEvents(context, joined.connection, lent=lent)
        for name in _EVENTS:
            joined.listen(name, getattr(events, name), _WATCHING)


def is_watched(joined: TransactionConnection) -> bool:
    """Return whether the program may have this connection, so that it is followed."""
    return joined.is_listened(_WATCHING)


def watch_connection(context: LockContext, connection: Connection) -> None:
    """Follow the program's use of this connection, which it was given."""
    found = context.connections.find(connection)
    if found is None:
        return
    if found.connection is connection:
        watch(context, found)
    if found.level is not None:  # COMMIT on the driver, which changes the level, goes unseen too
        context.connections.note_foreign()
    if context.calls.current is not None or context.ledger.counts_on_transaction(found.known):
        found.before_foreign()  # a raw driver cursor goes unseen


def watch_lent(context: LockContext) -> None:
    """Follow the connections lent to the session, whose lender may end the transaction."""
    for joined in context.connections.by_engine.values():
        if context.connections.is_lent(joined.connection):
            watch(context, joined)


def watch_all(context: LockContext) -> None:
    """Follow all connections: a statement of the program may end the transaction."""
    for joined in context.connections.by_engine.values():
        watch(context, joined)


class ConnectionEvents:
    """Reports the events of one Connection to the transaction of a session.

    Methods named like events of SQLAlchemy listen to them.
    """

    def __init__(self, context: LockContext, connection: Connection, *, lent: bool) -> None:
        self._context, self._transaction = ref(context), ref(context.transaction)
        self._engine, self._lent = connection.engine, lent

    def _found(self) -> tuple[LockTransaction, TransactionConnection] | None:
        transaction = self._transaction()
        joined = (
            None if transaction is None else transaction.connections.by_engine.get(self._engine)
        )
        return None if transaction is None or joined is None else (transaction, joined)

    def before_cursor_execute(
        self,
        connection: Connection,
        _cursor: Any,
        statement: str,
        _parameters: Any,
        context: Any,
        *_: Any,
    ) -> None:
        """Mark the transaction before a foreign statement."""
        found, locks = self._found(), self._context()
        if found is None or locks is None:
            return
        transaction, joined = found
        if joined.prepared or runs_built(context):
            may_have_ended = transaction.lost or joined.in_doubt
            if may_have_ended and is_flushing(locks.session()):  # by a listener, after the check
                transaction.refuse_write()
            return
        self._before_foreign(transaction, joined, locks, statement)

    def _before_foreign(
        self,
        transaction: LockTransaction,
        joined: TransactionConnection,
        locks: LockContext,
        statement: str,
    ) -> None:
        counts = transaction.ledger.counts_on_transaction(joined.known)
        savepoint = re.match(_SAVEPOINT, statement)
        if savepoint is not None and counts:
            self._before_savepoint(transaction, joined, *savepoint.groups())
        if savepoint is None and locks.calls.current is None:  # otherwise the lock call sends it
            transaction.connections.note_foreign()
            joined.expect_no_transaction()
            if counts:
                joined.before_foreign()

    def _before_savepoint(
        self, transaction: LockTransaction, joined: TransactionConnection, verb: str, name: str
    ) -> None:
        """Forget the locks that a rollback releases, before an interruption can hide its answer."""
        rolls_back = verb.upper().startswith("ROLLBACK")
        marks = None if joined.known is None else joined.known.marks
        asks = joined.in_doubt and isinstance(marks, SavepointMarks)  # the statement may end it
        if rolls_back and _aborts(joined):
            asks = False  # an aborted transaction cannot be asked
        if joined.has_ended(ask=False) or (asks and joined.transaction_has_changed()):
            transaction.note_ended(joined.connection, "lost")
        if rolls_back:
            self._before_rollback(transaction, joined, verb, name)

    def _before_rollback(
        self, transaction: LockTransaction, joined: TransactionConnection, verb: str, name: str
    ) -> None:
        mark = dict(joined.savepoints).get(name) or self._mark_of_session(transaction, joined, name)
        if mark is not None:
            transaction.release_since(mark, "rolled back")
        elif self._undoes_unknown(verb, name) and _aborts(joined):
            # If the error of an unknown savepoint aborts nothing, no lock is released.
            transaction.release(None, "rolled back")

    def _mark_of_session(
        self, transaction: LockTransaction, joined: TransactionConnection, name: str
    ) -> Mark | None:
        """Return the state from when the session itself set this savepoint."""
        locks = self._context()
        savepoint = (
            None if locks is None else savepoint_on(locks.session(), joined.connection, name)
        )
        return None if savepoint is None else transaction.savepoints.get(savepoint)

    def _undoes_unknown(self, verb: str, name: str) -> bool:
        """Return whether this rolls back an unknown savepoint, so that the released locks are unknown."""
        # A session's savepoint without a mark is older than all of its locks.
        session_knows = name.startswith("sa_savepoint_") and not self._lent
        return " TO" in verb.upper() and not session_knows

    def after_cursor_execute(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        _parameters: Any,
        context: Any,
        *_: object,
    ) -> None:
        """Forget the locks that this statement has released."""
        found = self._found()
        if found is None or found[1].prepared:
            return
        transaction, joined = found
        savepoint = re.match(_SAVEPOINT, statement)
        if savepoint is not None and self._note_savepoint(transaction, joined, *savepoint.groups()):
            return
        foreign = savepoint is None and not runs_built(context)
        known = joined.known
        if known is None or not transaction.ledger.counts_on_transaction(known):
            return
        ended = known.status.in_transaction(connection, cursor) is False
        if ended or (foreign and joined.unmarked):  # it could not be detected later
            transaction.note_ended(connection, "lost")

    def _note_savepoint(
        self, transaction: LockTransaction, joined: TransactionConnection, verb: str, name: str
    ) -> bool:
        """Record a statement's effect on a savepoint; return whether the savepoint is known."""
        if verb.upper().startswith("SAVE"):
            joined.set_savepoint(name, transaction.mark())
            return True
        names = [known for known, _ in joined.savepoints]
        if name not in names:
            mark = self._mark_of_session(transaction, joined, name)
            if verb.upper().startswith("ROLLBACK") and mark is not None:
                joined.note_rolled_back()
                joined.keep_savepoints(0)  # they were all set inside
                transaction.roll_back_connection(mark, names)
                return True
            if self._undoes_unknown(verb, name):
                transaction.roll_back_connection(None, names)
            return False
        position = len(names) - 1 - names[::-1].index(name)
        _, mark = joined.savepoints[position]
        if verb.upper().startswith("RELEASE"):
            joined.keep_savepoints(position)
        else:
            # It remains, and can be rolled back to again.
            joined.note_rolled_back()
            joined.keep_savepoints(position + 1)
            transaction.roll_back_connection(mark, names[position:])
        return True

    def commit(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        transaction = self._transaction()
        if transaction is None:
            return
        if transaction.connections.commits_now():
            transaction.before_own_commit(connection)
        else:
            transaction.note_ended(connection, "committed")

    def prepare_twophase(self, connection: Connection, *_: object) -> None:
        """Refuse to prepare another transaction than that of the locks."""
        found, locks = self._found(), self._context()
        if found is None or locks is None:
            return
        transaction, joined = found
        transaction.before_own_commit(connection)
        joined.prepared = locks.session().twophase  # not by the lender

    def rollback(self, connection: Connection, *_: object) -> None:
        """Forget all locks."""
        transaction = self._transaction()
        if transaction is not None:
            transaction.note_ended(connection, "rolled back")

    rollback_twophase = rollback

    def commit_twophase(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        transaction = self._transaction()
        if transaction is not None and not transaction.connections.commits_now():
            transaction.note_ended(connection, "committed")


def _aborts(joined: TransactionConnection) -> bool:
    """Return whether the error of a statement may abort its transaction."""
    return joined.known is None or joined.known.errors.every_error is EveryError.ABORTS
