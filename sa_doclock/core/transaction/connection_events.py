"""The events of a Connection that the program has in hand.

By ``session.connection()``, or by lending its own, a program can end a transaction or a savepoint
that the session counts on.  A session whose Connection nobody else has pays nothing for this.
"""

from __future__ import annotations

import re
from typing import Any, Final
from weakref import ref

from sqlalchemy import Connection

from ..sqlalchemy_internals import savepoint_on
from .connection import Mark, TransactionConnection
from .context import LockContext
from .foreign import runs_built
from .state import TransactionState

_EVENTS: Final = (
    "before_cursor_execute",
    "after_cursor_execute",
    "prepare_twophase",
    "commit",
    "rollback",
    "commit_twophase",
    "rollback_twophase",
)
# SQLAlchemy's event of a savepoint comes before the savepoint has its name, and a program may write
# its own.  SAVE TRANSACTION and ROLLBACK TRANSACTION with a name are those of SQL Server.  A listener of
# the engine may put a comment behind each statement, as OpenTelemetry's sqlcommenter does.
_SPACE: Final = r"(?:[\s;]|/\*(?:[^*]|\*(?!/))*\*/|--[^\n]*(?:\n|$))*"
_SAVEPOINT: Final = re.compile(
    rf"{_SPACE}(SAVEPOINT|SAVE\s+TRAN\w*|RELEASE(?:\s+SAVEPOINT)?"
    r"|ROLLBACK(?:\s+(?:WORK|TRAN\w*))?(?:\s+TO(?:\s+SAVEPOINT)?)?)"
    rf"""\s+("(?:[^"]|"")+"|`(?:[^`]|``)+`|\[[^\]]+\]|(?!/\*|--)\S+?){_SPACE}$""",
    re.IGNORECASE,
)


def watch(context: LockContext, one: TransactionConnection) -> None:
    """Follow what the program does with this connection."""
    if not one.watched:
        one.watched = True
        events = ConnectionEvents(context, one, lent=context.connections.is_lent(one.connection))
        for name in _EVENTS:
            one.listen(name, getattr(events, name))


def watch_connection(context: LockContext, connection: Connection) -> None:
    """Follow what the program does with this connection, which it has been given."""
    found = context.connections.find(connection)
    if found is None:
        return
    if found.connection is connection:
        watch(context, found)
    if context.ledger.counts_on_transaction(found.known):
        found.before_foreign()  # a cursor of the driver's own is not seen


def watch_all(context: LockContext) -> None:
    """Follow all connections: a statement of the program's own may end the transaction."""
    for one in context.connections.by_engine.values():
        watch(context, one)


class ConnectionEvents:
    """Tells the state of a session what happens on one Connection.

    The methods named as events of SQLAlchemy listen to them.
    """

    _prepared = False
    """True from the first phase of a two-phase commit on, whose statements are SQLAlchemy's own."""

    def __init__(self, context: LockContext, one: TransactionConnection, *, lent: bool) -> None:
        self._state, self._ledger = ref(context.transaction), context.ledger
        self._session, self._calls = context.session, context.calls
        self._one, self._lent = one, lent

    def before_cursor_execute(
        self,
        connection: Connection,
        _cursor: Any,
        statement: str,
        _parameters: Any,
        context: Any,
        *_: Any,
    ) -> None:
        """Mark the transaction in front of a foreign statement."""
        known = self._one.known
        if not self._ledger.counts_on_transaction(known) or runs_built(context) or self._prepared:
            return
        savepoint = _SAVEPOINT.match(statement)
        if savepoint is not None:
            marks = None if known is None else known.marks
            # A mark that is a savepoint would go with it, or take it along.
            self._settle(ask=marks is not None and marks.is_savepoint)
            self._release_before(*savepoint.groups())
        elif self._calls.current is None:  # in a call for a lock, the statements are its own
            self._one.before_foreign()

    def _settle(self, *, ask: bool) -> None:
        """Find out now whether a foreign statement has ended the transaction."""
        state, one = self._state(), self._one
        if state is not None and one.has_ended(ask=ask):
            state.note_ended(one.connection, "lost")

    def _release_before(self, verb: str, name: str) -> None:
        """Forget the locks that this rollback gives up: an interruption may come before its answer."""
        state = self._state()
        if state is None or verb.upper().startswith(("SAVE", "RELEASE")):
            return
        known = self._one.known
        mark = dict(self._one.savepoints).get(name) or self._mark_of_session(state, name)
        if mark is not None:
            state.release(mark[0], "rolled back")
        elif self._undoes_unknown(verb, name) and (known is None or known.errors.aborts_on_error):
            # Where the error of a savepoint that is unknown aborts nothing, nothing is given up.
            state.release(None, "rolled back")

    def _mark_of_session(self, state: TransactionState, name: str) -> Mark | None:
        """Return what there was when the session itself has set this savepoint."""
        savepoint = savepoint_on(self._session(), self._one.connection, name)
        return None if savepoint is None else state.savepoints.get(savepoint)

    def _undoes_unknown(self, verb: str, name: str) -> bool:
        """Return whether a savepoint that is not known is rolled back, and nobody knows what was locked."""
        # One of the session, which has no mark, is older than all that it has locked.
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
        state = self._state()
        if state is None or self._prepared:
            return
        savepoint = _SAVEPOINT.match(statement)
        if savepoint is not None and self._note_savepoint(state, *savepoint.groups()):
            return
        foreign = savepoint is None and not runs_built(context)
        if self._has_ended(connection, cursor, statement, foreign=foreign):
            self._end(state, connection, "lost")

    def _has_ended(
        self, connection: Connection, cursor: Any, statement: str, *, foreign: bool
    ) -> bool:
        """Return whether the transaction of the locks is gone after this statement."""
        known = self._one.known
        if known is None or not self._ledger.counts_on_transaction(known):
            return False
        if known.status.in_transaction_after(connection, cursor, statement) is False:
            return True
        return foreign and self._one.unmarked  # nobody could tell later

    def _note_savepoint(self, state: TransactionState, verb: str, name: str) -> bool:
        """Note what a statement has done to a savepoint; return whether it is one that we know."""
        one = self._one
        if verb.upper().startswith("SAVE"):
            one.savepoints = (*one.savepoints, (name, state.mark()))
            return True
        names = [known for known, _ in one.savepoints]
        if name not in names:
            mark = self._mark_of_session(state, name)
            if verb.upper().startswith("ROLLBACK") and mark is not None:
                one.savepoints = ()  # they were all set inside
                state.roll_back_connection(mark, names)
                return True
            if self._undoes_unknown(verb, name):
                state.roll_back_connection(None, names)
            return False
        position = len(names) - 1 - names[::-1].index(name)
        _, mark = one.savepoints[position]
        if verb.upper().startswith("RELEASE"):
            one.savepoints = one.savepoints[:position]
        else:
            # It stays, and can be rolled back to once more.
            one.savepoints = one.savepoints[: position + 1]
            state.roll_back_connection(mark, names[position:])
        return True

    def commit(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        state = self._state()
        if state is None:
            return
        if state.connections.commits_now():
            state.before_own_commit(connection)
        else:
            self._end(state, connection, "committed")

    def prepare_twophase(self, connection: Connection, *_: object) -> None:
        """Refuse to prepare another transaction than that of the locks."""
        state = self._state()
        if state is not None:
            state.before_own_commit(connection)
        session = self._session()
        self._prepared = session is not None and session.twophase  # and not by the lender

    def rollback(self, connection: Connection, *_: object) -> None:
        """Forget all locks."""
        state = self._state()
        if state is not None:
            self._end(state, connection, "rolled back")

    rollback_twophase = rollback

    def commit_twophase(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        state = self._state()
        if state is not None and not state.connections.commits_now():
            self._end(state, connection, "committed")

    def _end(self, state: TransactionState, connection: Connection, outcome: str) -> None:
        self._one.savepoints, self._prepared = (), False
        state.note_ended(connection, outcome)
