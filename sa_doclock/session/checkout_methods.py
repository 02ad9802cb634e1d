"""The methods of a session for check-outs, which outlive its transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..checkout_info import Checkout
from ..options import LockTimeout
from .block_methods import BlockMethods

if TYPE_CHECKING:
    from ..features.checkouts import CheckOutCalls

_QUARTER_HOUR: Final = timedelta(minutes=15)


class CheckoutMethods(BlockMethods):
    """A Session whose documents can be checked out."""

    def check_out(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        *,
        lease: timedelta | float = _QUARTER_HOUR,
        note: str | None = None,
        lock_timeout: LockTimeout = None,
    ) -> Checkout:
        """Check a document out: until the lease ends, only this owner may lock it ForUpdate.

        The method takes the ForUpdate lock of the header, and writes to the session's table of
        check-outs.  The check-out takes effect when the transaction is committed, and lasts beyond
        it: no lock, transaction or connection is held in between.  The database's clock alone
        decides when the lease ends.  An owner who has the document already keeps the epoch, and
        the lease begins again.  For a document that is free, or whose lease has ended, the epoch is
        one greater than before.

        Not promised: that nobody writes to the document without this session: with ``text()``, in
        a session without ``checkouts=``, in another program.

        :param entity: a class that is declared by ``@document(checkout=True)``.
        :param ident: the primary key, as for :meth:`get_entity`.
        :param owner: who checks it out: any text of 1 to 255 characters, such as a user's id.
        :param lease: the time of the check-out from now on: a timedelta, or seconds; rounded up to
            milliseconds.
        :param note: what others are shown beside the owner; None keeps that of the same check-out.
        :param lock_timeout: as for :meth:`get_entity`.
        :raises CheckedOut: another owner has it, as ``error.checkout`` says.
        :raises sqlalchemy.exc.NoResultFound: there is no such row.
        :raises LockMisuse: the session was made without ``checkouts=``, or the class is declared
            without ``checkout=True``.
        :raises LockNotAvailable: another transaction held the row past ``lock_timeout``.
        :raises LockNotSupported: a primary key that cannot be written as a text.
        :raises ValueError: an owner, a lease or a note that cannot be stored.
        """
        return self._checkouts().check_out(entity, ident, owner, lease, note, lock_timeout)

    def take_over(
        self,
        entity: type[Any],
        ident: Any,
        owner: str,
        *,
        lease: timedelta | float = _QUARTER_HOUR,
        note: str | None = None,
        lock_timeout: LockTimeout = None,
    ) -> Checkout:
        """Check a document out, also where another owner has it.

        The epoch is always a new one, also for the same owner: who had the document before cannot
        save any more, and gets :class:`CheckoutLost`.  The parameters and errors are otherwise those
        of :meth:`check_out`.
        """
        return self._checkouts().check_out(
            entity, ident, owner, lease, note, lock_timeout, takes_over=True
        )

    def renew(self, checkout: Checkout, lease: timedelta | float | None = None) -> Checkout:
        """Renew a check-out: its lease begins again now.

        The new end takes effect when the transaction is committed.  The method takes no lock of the
        header, so it does not wait while the document is being written.  A check-out that has
        expired can be renewed as long as nobody has checked the document out since.

        :param checkout: what :meth:`check_out`, :meth:`renew` or :meth:`checkout_of` has returned.
        :param lease: a timedelta or seconds; None: as long as before.
        :returns: the same check-out with its new end.
        :raises CheckoutLost: the document was taken over, or checked in.
        """
        return self._checkouts().renew(checkout, lease)

    def check_in(self, checkout: Checkout) -> None:
        """End a check-out, so that the document is free.

        It takes effect when the transaction is committed, so the last change and the check-in may be
        in one transaction.  The method takes no lock of the header.

        :raises CheckoutLost: the document was taken over, or is checked in already.
        """
        self._checkouts().check_in(checkout)

    def checkout_of(
        self, entity: type[Any], ident: Any, *, expired: bool = False
    ) -> Checkout | None:
        """Return the check-out of a document; None where there is none, or its lease has ended.

        A plain read: it neither waits nor locks.

        :param expired: also return a check-out whose lease has ended, as long as nobody has checked
            the document out since: its epoch is still valid.
        :raises LockMisuse: as :meth:`check_out`.
        """
        return self._checkouts().find(entity, ident, expired=expired)

    def checkouts(
        self,
        entity: type[Any] | None = None,
        *,
        owner: str | None = None,
        expired: bool = False,
    ) -> list[Checkout]:
        """Return the check-outs of this session's table, the oldest first.

        A plain read.  Of the table it shows the classes that this program declares with
        ``checkout=True``.  A check-out whose key the class cannot read is in the list too: its
        ``unreadable`` is True, and its ``ident`` is the text of the table.

        :param entity: only those of this class and its hierarchy.
        :param owner: only those of this owner.
        :param expired: also those whose lease has ended, and that nobody has taken over or checked
            in; their ``expired`` is True.
        :raises LockMisuse: as :meth:`check_out`.
        """
        return self._checkouts().find_all(entity, owner, expired=expired)

    def _checkouts(self) -> CheckOutCalls:
        """Return what does it.  :raises LockMisuse: the session was made without ``checkouts=``."""
        from ..features.checkouts import CheckOutCalls  # noqa: PLC0415  # of a session that uses it

        return CheckOutCalls(self._context, self.get_one_entity)
