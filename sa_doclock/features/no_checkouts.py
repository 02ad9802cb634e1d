"""The refusal of ``checkout=`` in a session that is made without a table of check-outs."""

from __future__ import annotations

from typing import Final

from ..core.transaction import LockRequest
from ..errors import LockMisuse

NO_TABLE: Final = (
    "this session has no table of check-outs: make it with LockingSession(checkouts=table), where table "
    "is checkout_table(metadata)"
)


class NoCheckOuts:
    """The ``Condition`` of a session without check-outs; it keeps nothing of it."""

    def check_request(self, request: LockRequest) -> None:
        """See :class:`Condition`.  :raises LockMisuse: a check-out was given."""
        if "checkout" in request.given:
            raise LockMisuse(NO_TABLE)

    def check_found(self, request: LockRequest, found: object) -> None:
        """See :class:`Condition`: there is none."""
