"""What a LockingSession knows of its own transaction, kept by what SQLAlchemy tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from .aftermath import Aftermath
from .errors import WrongIsolation
from .ledger import Ledger
from .transactions import Participants

if TYPE_CHECKING:
    from .session import LockingSession


class Books:
    """The books of one session: empty when its transaction has ended."""

    def __init__(self, session: Session) -> None:
        self.ledger = Ledger()
        self.participants = Participants(session)
        self.aftermath = Aftermath(session, self.participants, self.ledger)

    def refuse_write_in_snapshot(self) -> None:
        """:raises WrongIsolation: a SnapshotRead has opened the transaction."""
        if self.participants.read_only():
            raise WrongIsolation(
                "a SnapshotRead has opened this transaction read-only; end it before you write"
            )


def keep_books(session_class: type[LockingSession]) -> None:
    """Listen to the transactions of this class and its subclasses."""
    for listener in (
        after_begin,
        after_transaction_create,
        after_soft_rollback,
        after_transaction_end,
        before_commit,
        before_flush,
    ):
        event.listen(session_class, listener.__name__, listener)


def after_begin(
    session: LockingSession, _transaction: SessionTransaction, connection: Connection
) -> None:
    """Note the connection, and the errors that it will meet."""
    session._books.participants.joined(connection)
    session._books.aftermath.watch(connection)


def after_transaction_create(session: LockingSession, transaction: SessionTransaction) -> None:
    """Note what was held when a savepoint was set."""
    if transaction.nested:
        session._books.ledger.open_savepoint(transaction)
        session._books.participants.before_savepoint()


def after_soft_rollback(session: LockingSession, transaction: SessionTransaction) -> None:
    """Forget what was locked, and what failed, since then."""
    if transaction.nested:
        session._books.ledger.roll_back_to(transaction)
    session._books.aftermath.rolled_back(transaction)


def after_transaction_end(session: LockingSession, transaction: SessionTransaction) -> None:
    """Close the books."""
    if transaction.parent is None:
        session._books.ledger.clear()
        session._books.participants.ended()
        session._books.aftermath.over()


def before_commit(session: LockingSession) -> None:
    """Commit nothing after a failed lock."""
    session._books.aftermath.refuse()


def before_flush(session: LockingSession, *_: Any) -> None:
    """Write nothing in a snapshot."""
    session._books.refuse_write_in_snapshot()
