"""The methods of a session for check-outs; see there for what they promise."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import inspect

from ...checkout_info import Checkout
from ...core.documents import document_key
from ...core.transaction import LockContext
from ...options import LockOptions, LockTimeout
from .changes import CheckoutChanges, check_lease, check_note, check_owner, undone_if_refused
from .conditions import ANYBODY, Condition, OwnedBy
from .part import checkouts_of


class CheckOutCalls:
    """The check-outs of one session, as its methods ask for them.

    :param lock: the session's ``get_one_entity()``.
    :raises LockMisuse: the session was made without ``checkouts=``.
    """

    def __init__(self, state: LockContext, lock: Callable[..., Any]) -> None:
        self._state, self._lock = state, lock
        self._part = checkouts_of(state)
        self._changes = CheckoutChanges(self._part)

    def check_out(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        lease: timedelta | float,
        note: str | None,
        lock_timeout: LockTimeout,
    ) -> Checkout:
        """Check a document out, which nobody else has."""
        condition = OwnedBy(check_owner(owner))
        return self._own(entity, ident, owner, condition, check_lease(lease), note, lock_timeout)

    def take_over(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        lease: timedelta | float,
        note: str | None,
        lock_timeout: LockTimeout,
    ) -> Checkout:
        """Check a document out, also where another owner has it."""
        check_owner(owner)
        return self._own(entity, ident, owner, ANYBODY, check_lease(lease), note, lock_timeout)

    def _own(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        condition: Condition,
        lease: timedelta,
        note: str | None,
        lock_timeout: LockTimeout,
    ) -> Checkout:
        check_note(note)
        checkout = None
        with undone_if_refused(self._state):
            while checkout is None:  # again only after a renewal at the same moment
                self._part.read_again()
                found = self._lock(
                    entity,
                    ident,
                    LockOptions.ForUpdate,
                    lock_timeout=lock_timeout,
                    checkout=condition,
                )
                state = inspect(found)
                document = document_key(state.mapper, state.identity)
                renews = condition is not ANYBODY
                checkout = self._changes.write(document, owner, lease, note, renews=renews)
        return checkout

    def renew(self, checkout: Checkout, lease: timedelta | float | None) -> Checkout:
        """Renew a check-out: its lease begins again now."""
        time = None if lease is None else check_lease(lease)
        with undone_if_refused(self._state):
            self._state.failure.refuse()
            self._state.transaction.refuse_write()
            return self._changes.renew(checkout, time)

    def check_in(self, checkout: Checkout) -> None:
        """End a check-out."""
        with undone_if_refused(self._state):
            self._state.failure.refuse()
            self._state.transaction.refuse_write()
            self._changes.check_in(checkout)

    def find(self, entity: type[Any], ident: Any, *, expired: bool) -> Checkout | None:
        """Return the check-out of a document; nothing is locked."""
        self._state.failure.refuse()
        return self._changes.find(entity, ident, expired=expired)

    def find_all(
        self, entity: type[Any] | None, owner: str | None, *, expired: bool
    ) -> list[Checkout]:
        """Return the documents that are checked out; nothing is locked."""
        self._state.failure.refuse()
        return self._changes.find_all(entity, owner, expired=expired)
