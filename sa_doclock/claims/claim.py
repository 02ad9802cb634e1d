"""One row that has come up: the block in which it is worked on."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from ..errors import LockMisuse
from ..lock_info import Identity
from ..session import LockingSession
from .report import told

T = TypeVar("T")


class Turn(Protocol[T]):
    """The transaction that a claim is in."""

    session: LockingSession
    waiting: Claim[T] | None

    def enter(self, identity: Identity) -> None:
        """The block begins."""

    def leave(self, identity: Identity, raised: BaseException | None) -> bool:
        """The block has ended; say whether what it raised is kept for the report."""


class Claim(Generic[T]):
    """A row that is locked now: ``with claim as row:``, once.

    The end of the block commits; an exception rolls back, and comes out unless claim_each()
    was told to collect. A claim that is not entered is given back when the next one comes up.

    :ivar key: the primary key: a scalar, or a tuple when composite.
    :ivar session: the session that the row is in. Its transaction is the claim's: flush() and
        save_changes() only flush. ``commit()`` ends the claim there, and SQLAlchemy refuses
        what follows in the block; ``rollback()`` gives the row back.
    """

    def __init__(self, turn: Turn[T], identity: Identity, row: T) -> None:
        self._turn = turn
        self._identity = identity
        self._row: T | None = row
        self.key: Any = told(identity)
        self.session = turn.session

    def __enter__(self) -> T:
        row, self._row = self._row, None
        if row is None or self._turn.waiting is not self:
            raise LockMisuse(
                f"the claim of {self.key!r} is over: each is entered once, before the next one "
                "comes up, and while its loop goes on"
            )
        self._turn.enter(self._identity)
        return row

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._turn.leave(self._identity, error)
