"""Claim: one locked row, and the block that works on it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import LockMisuse
from ..lock_info import Identity
from .query import public_key

if TYPE_CHECKING:
    from .transaction import ClaimTransaction

T = TypeVar("T")


class Claim(Generic[T]):
    """A row that is locked now: ``with claim as row:``, once.

    The end of the block commits. An exception rolls back, and comes out of the block unless
    claim_each() collects errors. A claim that is not entered is given back when the next one
    comes up.

    :ivar key: the primary key: a scalar, or a tuple when composite.
    :ivar session: the session that the row is in. Its transaction is the claim's: flush() and
        save_changes() only flush. ``commit()`` ends the claim there, and SQLAlchemy refuses
        what follows in the block; ``rollback()`` gives the row back.
    """

    def __init__(self, transaction: ClaimTransaction[T], identity: Identity, row: T) -> None:
        self._transaction = transaction
        self._identity = identity
        self._row: T | None = row
        self.key: Any = public_key(identity)
        self.session = transaction.session

    def __enter__(self) -> T:
        row, self._row = self._row, None
        if row is None or self._transaction.offered is not self:
            raise LockMisuse(
                f"the claim of {self.key!r} is over: a claim can be entered once, before the next "
                "one comes up, and while its loop runs"
            )
        self._transaction.enter_block(self._identity)
        return row

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return self._transaction.exit_block(self._identity, error)
