"""What a LockingSession knows of its own transaction, kept by what SQLAlchemy tells it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from .aftermath import Aftermath
from .errors import WrongIsolation
from .ledger import Ledger
from .transactions import Participants


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


class BookkeepingSession(Session):
    """A Session that knows what its transaction holds; it does nothing with it yet."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._books = Books(self)


# What SQLAlchemy tells the session of its own transactions, and its subclasses with it.


@event.listens_for(BookkeepingSession, "after_begin")
def _after_begin(
    session: BookkeepingSession, _transaction: SessionTransaction, connection: Connection
) -> None:
    """Note the connection, and the errors that it will meet."""
    session._books.participants.joined(connection)
    session._books.aftermath.watch(connection)


@event.listens_for(BookkeepingSession, "after_transaction_create")
def _after_transaction_create(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Note what was held when a savepoint was set."""
    if transaction.nested:
        session._books.ledger.open_savepoint(transaction)
        session._books.participants.before_savepoint()


@event.listens_for(BookkeepingSession, "after_soft_rollback")
def _after_soft_rollback(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Forget what was locked, and what failed, since then."""
    if transaction.nested:
        session._books.ledger.roll_back_to(transaction)
    session._books.aftermath.rolled_back(transaction)


@event.listens_for(BookkeepingSession, "after_transaction_end")
def _after_transaction_end(session: BookkeepingSession, transaction: SessionTransaction) -> None:
    """Close the books."""
    if transaction.parent is None:
        session._books.ledger.clear()
        session._books.participants.ended()
        session._books.aftermath.over()


@event.listens_for(BookkeepingSession, "before_commit")
def _before_commit(session: BookkeepingSession) -> None:
    """Commit nothing after a failed lock."""
    session._books.aftermath.refuse()


@event.listens_for(BookkeepingSession, "before_flush")
def _before_flush(session: BookkeepingSession, *_: Any) -> None:
    """Write nothing in a snapshot."""
    session._books.refuse_write_in_snapshot()
