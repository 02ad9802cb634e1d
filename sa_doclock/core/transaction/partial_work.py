"""The work of a transaction that was undone in part: its COMMIT would save a half, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import Session, SessionTransaction

from .connection import TransactionConnections


class _Abort(NamedTuple):
    """An error that only a rollback can follow.

    :ivar savepoint: the session's innermost savepoint, which it has aborted.
    :ivar within: the innermost savepoint that the program has set on the Connection itself.
    """

    error: BaseException
    savepoint: SessionTransaction | None
    within: str | None


class PartialWork:
    """The errors that have undone a part of the transaction, and were not rolled back since."""

    def __init__(self, session: Callable[[], Session]) -> None:
        self._session = session
        self._half_done: list[tuple[BaseException, SessionTransaction | None]] = []
        """Exceptions that have left an inner locked() block, each with the savepoint that was open."""
        self._abort: _Abort | None = None

    def note_half_done(self, error: BaseException) -> None:
        """Note that an exception has left an inner block, whose work is not to be saved."""
        self._half_done.append((error, self._session().get_nested_transaction()))

    def note_abort(
        self, error: BaseException, savepoint: SessionTransaction | None, within: str | None
    ) -> None:
        """Note an error that has aborted the transaction at the server, or its savepoint; see _Abort."""
        if self._abort is None:
            self._abort = _Abort(error, savepoint, within)

    def note_savepoints_undone(self, names: Collection[str]) -> None:
        """Note the rollback of savepoints that the program has set on the Connection itself."""
        if self._abort is not None and self._abort.within in names:
            self._abort = None

    def note_rollback(self, transaction: SessionTransaction) -> None:
        """Note the rollback of a savepoint, or of a flush."""
        self._half_done = [one for one in self._half_done if not is_in(one[1], transaction)]
        if self._abort is not None and is_in(self._abort.savepoint, transaction):
            self._abort = None

    def clear(self) -> None:
        """Forget all of it: the whole transaction is undone."""
        self._half_done, self._abort = [], None

    def refuse_commit(self, connections: TransactionConnections) -> None:
        """:raises PendingRollbackError: COMMIT would save a half, or be a ROLLBACK in silence."""
        if self._half_done:
            error, _ = self._half_done[0]
            raise PendingRollbackError(
                "An exception has left an inner locked() block, and a part of its work would be "
                "saved: call rollback(), or open a savepoint (begin_nested()) around such a block, "
                f"whose rollback undoes it. The exception was: {error!r}"
            ) from error
        if self._abort is not None and connections.aborted():
            raise PendingRollbackError(
                "An error has aborted this transaction, and the server would answer its COMMIT by "
                f"a ROLLBACK; call rollback(). The error was: {self._abort.error}"
            ) from self._abort.error


def is_in(savepoint: SessionTransaction | None, transaction: SessionTransaction) -> bool:
    """Return whether the savepoint is this transaction, or was set in it; None: there is none."""
    while savepoint is not None and savepoint is not transaction:
        savepoint = savepoint.parent
    return savepoint is not None
