"""The events of a Connection that the program has in hand.

By ``session.connection()``, or by lending its own, a program can end a transaction or a savepoint
that the session counts on.  A session whose Connection nobody else has pays nothing for this.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any, Final
from weakref import ReferenceType

from sqlalchemy import Connection, event

from ...dialects.base import LockStrategy
from .foreign import runs_built
from .ledger import LedgerMark

Mark = tuple[LedgerMark, dict[Any, Any]]
"""The marks of a moment: that of the ledger, and that of each part of the session."""

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
# its own.  SAVE TRANSACTION and ROLLBACK TRANSACTION with a name are those of SQL Server.
_SAVEPOINT: Final = re.compile(
    r"(?:\s|/\*.*?\*/|--[^\n]*\n)*(SAVEPOINT|SAVE\s+TRAN\w*|RELEASE(?:\s+SAVEPOINT)?"
    r"|ROLLBACK(?:\s+(?:WORK|TRAN\w*))?(?:\s+TO(?:\s+SAVEPOINT)?)?)"
    r"""\s+("(?:[^"]|"")+"|`(?:[^`]|``)+`|\[[^\]]+\]|\S+?)\s*;?\s*$""",
    re.IGNORECASE | re.DOTALL,
)


class TransactionFollower(ABC):
    """Follows a session's transaction: what becomes of it on one of its Connections."""

    commits_now = False
    """True from the start of the session's own commit to its end."""

    @abstractmethod
    def counts_on_transaction(self, strategy: LockStrategy | None) -> bool:
        """Return whether locks are held that end with a transaction of this database."""

    @abstractmethod
    def holds_locks(self) -> bool:
        """Return whether any document or named lock is held."""

    @abstractmethod
    def is_locking(self) -> bool:
        """Return whether a call for a lock is under way, whose statements are its own."""

    @abstractmethod
    def settle(self, connection: Connection) -> None:
        """Ask now whether a foreign statement has ended the transaction of this connection."""

    @abstractmethod
    def before_foreign(self, connection: Connection) -> None:
        """Mark the transaction of this connection: what follows may end it."""

    @abstractmethod
    def is_unmarked(self, connection: Connection) -> bool:
        """Return whether it could not be marked before the statement that has just succeeded."""

    @abstractmethod
    def before_own_commit(self, connection: Connection) -> None:
        """:raises LockLost: COMMIT would end another transaction than that of the locks."""

    @abstractmethod
    def mark(self) -> Mark:
        """Return what there is now, for a later :meth:`roll_back_connection`."""

    @abstractmethod
    def roll_back_connection(self, mark: Mark | None, savepoints: Collection[str]) -> None:
        """Forget what was done in these savepoints, which the program has rolled back itself.

        :param mark: of the first of them; None where nobody knows what was done since.
        """

    @abstractmethod
    def note_ended(self, connection: Connection | None, outcome: str) -> None:
        """Note that the transaction has ended, though the session has not ended it.

        :param connection: whose; None for all of them.
        """


class ConnectionEvents:
    """Tells the state of a session what happens on one Connection.

    The methods named as events of SQLAlchemy listen to them.

    :param lent: the Connection is the program's own.
    :param strategy: None where nothing is known of the database.
    """

    def __init__(
        self,
        state: ReferenceType[TransactionFollower],
        connection: Connection,
        strategy: LockStrategy | None,
        *,
        lent: bool,
    ) -> None:
        self._state, self._strategy, self._lent = state, strategy, lent
        self._savepoints: list[tuple[str, Mark]] = []
        for name in _EVENTS:
            event.listen(connection, name, getattr(self, name))

    def remove(self, connection: Connection) -> None:
        """Listen no more; needed only where the Connection outlives the transaction."""
        for name in _EVENTS:
            event.remove(connection, name, getattr(self, name))

    @property
    def innermost(self) -> tuple[str, Mark] | None:
        """The name of the innermost savepoint, and what was held when it was set."""
        return self._savepoints[-1] if self._savepoints else None

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
        state, strategy = self._state(), self._strategy
        if state is None or not state.counts_on_transaction(strategy) or runs_built(context):
            return
        if _SAVEPOINT.match(statement) is not None:
            marks = None if strategy is None else strategy.marks
            if marks is not None and marks.is_savepoint:
                state.settle(connection)  # the mark would go with it, or take it along
        elif not state.is_locking():
            state.before_foreign(connection)

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
        if state is None:
            return
        savepoint = _SAVEPOINT.match(statement)
        if savepoint is not None and self._note_savepoint(state, *savepoint.groups()):
            return
        foreign = savepoint is None and not runs_built(context)
        if self._has_ended(state, connection, cursor, statement, foreign=foreign):
            self._end(state, connection, "lost")

    def _has_ended(
        self,
        state: TransactionFollower,
        connection: Connection,
        cursor: Any,
        statement: str,
        *,
        foreign: bool,
    ) -> bool:
        """Return whether the transaction of the locks is gone after this statement."""
        strategy = self._strategy
        if strategy is None or not state.counts_on_transaction(strategy):
            return False
        if strategy.status.in_transaction_after(connection, cursor, statement) is False:
            return True
        return foreign and state.is_unmarked(connection)  # nobody could tell later

    def _note_savepoint(self, state: TransactionFollower, verb: str, name: str) -> bool:
        """Note what a statement has done to a savepoint; return whether it is one that we know."""
        if verb.upper().startswith("SAVE"):
            self._savepoints.append((name, state.mark()))
            return True
        names = [known for known, _ in self._savepoints]
        if name not in names:
            # Older than all that the session has locked, or nobody knows what was locked since.
            session_knows = name.startswith("sa_savepoint_") and not self._lent
            if " TO" in verb.upper() and not session_knows:
                state.roll_back_connection(None, names)
            return False
        position = len(names) - 1 - names[::-1].index(name)
        _, mark = self._savepoints[position]
        if verb.upper().startswith("RELEASE"):
            del self._savepoints[position:]
        else:
            del self._savepoints[position + 1 :]  # it stays, and can be rolled back to once more
            state.roll_back_connection(mark, names[position:])
        return True

    def commit(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        state = self._state()
        if state is None:
            return
        if state.commits_now:
            state.before_own_commit(connection)
        else:
            self._end(state, connection, "committed")

    def prepare_twophase(self, connection: Connection, *_: object) -> None:
        """Refuse to prepare another transaction than that of the locks."""
        state = self._state()
        if state is not None and state.commits_now:
            state.before_own_commit(connection)

    def rollback(self, connection: Connection, *_: object) -> None:
        """Forget all locks."""
        state = self._state()
        if state is not None:
            self._end(state, connection, "rolled back")

    rollback_twophase = rollback

    def commit_twophase(self, connection: Connection, *_: object) -> None:
        """Forget all locks, unless it is the commit of the session itself."""
        state = self._state()
        if state is not None and not state.commits_now:
            self._end(state, connection, "committed")

    def _end(self, state: TransactionFollower, connection: Connection, outcome: str) -> None:
        self._savepoints.clear()
        state.note_ended(connection, outcome)
