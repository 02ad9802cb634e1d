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

from ..ledger import Ledger, LedgerMark
from .connection import TransactionConnection
from .foreign import runs_built

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

    @property
    @abstractmethod
    def commits_now(self) -> bool:
        """True from the start of the session's own commit to its end."""

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

    @abstractmethod
    def note_locks_lost(self, outcome: str = "lost") -> None:
        """Forget all locks: the server has given them up, though the transaction goes on here."""


class ConnectionEvents:
    """Tells the state of a session what happens on one Connection.

    The methods named as events of SQLAlchemy listen to them.

    :param one: the connection.
    :param lent: the Connection is the program's own.
    """

    def __init__(
        self,
        state: ReferenceType[TransactionFollower],
        ledger: Ledger,
        one: TransactionConnection,
        *,
        lent: bool,
    ) -> None:
        self._state, self._ledger, self._one, self._lent = state, ledger, one, lent
        self._savepoints: list[tuple[str, Mark]] = []
        for name in _EVENTS:
            event.listen(one.connection, name, getattr(self, name))

    def remove(self) -> None:
        """Listen no more; needed only where the Connection outlives the transaction."""
        for name in _EVENTS:
            event.remove(self._one.connection, name, getattr(self, name))

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
        known = self._one.known
        if not self._ledger.counts_on_transaction(known) or runs_built(context):
            return
        if _SAVEPOINT.match(statement) is not None:
            marks = None if known is None else known.marks
            if marks is not None and marks.is_savepoint:
                self._settle()  # the mark would go with it, or take it along
        elif not self._ledger.grants:  # in a call for a lock, the statements are its own
            self._one.before_foreign()

    def _settle(self) -> None:
        """Ask now whether a foreign statement has ended the transaction."""
        state = self._state()
        if state is not None and self._one.in_doubt and self._one.transaction_has_changed():
            state.note_ended(self._one.connection, "lost")

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
