"""LockContext: the state that one session keeps for its locks."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final
from weakref import ReferenceType, ref

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session

from ...events import EventfulSession
from ...first_use import FirstUse
from ...interruptions import ErrorsIgnored
from ..ledger import Ledger
from ..loading import LoadedDocuments
from ..lock_request import LockCalls
from ..session_options import SessionOptions
from .lock_transaction import LockTransaction
from .session_part import SessionParts
from .transaction_connection import TransactionConnections


class LockContext:
    """The state that one session keeps for its locks, from one transaction to the next.

    It does not keep its session alive: a Session without other references is freed at once, with
    its objects.  Only functions that the session itself calls may call ``session()``.
    """

    def __init__(self, session: EventfulSession, options: SessionOptions) -> None:
        # Every caller has the session, or is called by it.
        self.session: Callable[[], EventfulSession] = ref(session)  # type: ignore[assignment]
        self.options = options
        self.parts = SessionParts()
        """The features of this session."""
        self.calls = LockCalls()

    commits = 0
    """The number of transactions that the session has committed."""
    added = False
    """True if an object was ever added to the session."""
    blocks: tuple[ReferenceType[Callable[[], None]], ...] = ()
    """Each raises LockLost if the lock of its open writing locked() block, which keeps it alive, is gone."""

    @FirstUse
    def loaded(self) -> LoadedDocuments:
        """The objects of documents in the session; created lazily, because most sessions lock first."""
        return LoadedDocuments(self.session)

    transaction = FirstUse(LockTransaction)
    """The transaction of the session; each has its own object."""

    # Of the current transaction.
    ledger: Ledger = property(attrgetter("transaction.ledger"))  # type: ignore[assignment]
    connections: TransactionConnections = property(attrgetter("transaction.connections"))  # type: ignore[assignment]

    def roll_back_quietly(self) -> None:
        """Roll back because of an error, which takes precedence over errors of the rollback."""
        with ErrorsIgnored():
            self.session().rollback()

    def end_transaction(self) -> None:
        """Drop the state of the transaction, which has ended."""
        ended: LockTransaction | None = vars(self).pop("transaction", None)
        if ended is not None:
            ended.end()

    def end_if_over(self) -> None:
        """End a transaction whose event was prevented by an interruption, or by an error of a listener."""
        transaction: LockTransaction | None = vars(self).get("transaction")
        root = None if transaction is None else transaction.connections.root
        if root is not None and self.session().get_transaction() is not root:
            self.end_transaction()

    def forget(self) -> None:
        """Drop the state of a transaction that has ended, or has never begun."""
        self.end_if_over()
        if not self.session().in_transaction():
            self.end_transaction()


binds_of: Final[Callable[[Session], tuple[Engine | Connection, ...]]] = attrgetter("_given_binds")
"""Return the databases that a LockingSession was given for some classes and tables."""

_context_of: Final[Callable[[Session], LockContext]] = attrgetter("_context")


def state_of(session: Session) -> LockContext | None:
    """Return the context of a LockingSession, or None for any other session."""
    return _context_of(session) if isinstance(session, EventfulSession) else None
