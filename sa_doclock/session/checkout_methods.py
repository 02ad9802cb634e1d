"""The methods of a session for check-outs, which outlive its transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from ..checkout_info import Checkout
from ..options import LockTimeout
from .create_methods import CreateMethods

if TYPE_CHECKING:
    from ..features.checkouts import CheckOutCalls

_QUARTER_HOUR: Final = timedelta(minutes=15)


class CheckoutMethods(CreateMethods):
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
        """Check a document out: nobody but this owner may lock it ForUpdate until the time is over.

        It takes the ForUpdate lock of the header, and writes to the session's table of check-outs.
        It counts when the transaction is committed, and outlives it: nothing is held in between.
        The database's clock alone decides.  An owner who has the document already keeps the epoch,
        and gets the time anew.  Whoever gets a document that is free, or whose time is over, gets
        an epoch greater by one.

        Not promised: that nobody writes to the document past the session: with ``text()``, in
        a session without ``checkouts=``, in another program.

        :param entity: a class that is declared by ``@document(checkout=True)``.
        :param ident: the primary key, as for :meth:`get_entity`.
        :param owner: who checks it out: any text of 1 to 255 characters, such as a user's id.
        :param lease: for how long, from now on: a timedelta, or seconds; rounded up to milliseconds.
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
        """Check a document out, whoever has it.

        The epoch is always a new one, also of the same owner: whoever had the document cannot save
        any more, and gets :class:`CheckoutLost`.  What is not said here is as for :meth:`check_out`.
        """
        return self._checkouts().take_over(entity, ident, owner, lease, note, lock_timeout)

    def renew(self, checkout: Checkout, lease: timedelta | float | None = None) -> Checkout:
        """Give a check-out the time anew, from now on.

        It counts when the transaction is committed.  It takes no lock of the header, so that it
        does not wait while the document is being written.  One that has expired is good as long as
        nobody has taken the document since.

        :param checkout: what :meth:`check_out`, :meth:`renew` or :meth:`checkout_of` has returned.
        :param lease: a timedelta or seconds; None: as long as before.
        :returns: the same check-out with its new end.
        :raises CheckoutLost: the document was taken over, or checked in.
        """
        return self._checkouts().renew(checkout, lease)

    def check_in(self, checkout: Checkout) -> None:
        """End a check-out, so that the document is free.

        It counts when the transaction is committed, so it may stand beside the last change, in one
        transaction.  It takes no lock of the header.

        :raises CheckoutLost: the document was taken over, or is checked in already.
        """
        self._checkouts().check_in(checkout)

    def checkout_of(
        self, entity: type[Any], ident: Any, *, expired: bool = False
    ) -> Checkout | None:
        """Return who has a document checked out; None where nobody has, or the time is over.

        A plain read: it neither waits nor locks.

        :param expired: also one whose time is over, while nobody else has taken the document: its
            epoch is still good.
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
        """Return the documents that are checked out, from the oldest check-out on.

        A plain read.  Of the table it shows the classes that this program declares with
        ``checkout=True``.

        :param entity: only those of this class and its hierarchy.
        :param owner: only those of this owner.
        :param expired: also those whose time is over, and that nobody has taken or checked in;
            their ``expired`` is True.
        :raises LockMisuse: as :meth:`check_out`.
        """
        return self._checkouts().find_all(entity, owner, expired=expired)

    def _checkouts(self) -> CheckOutCalls:
        """Return what does it.  :raises LockMisuse: the session was made without ``checkouts=``."""
        from ..features.checkouts import CheckOutCalls  # noqa: PLC0415  # of a session that uses it

        return CheckOutCalls(self._context, self.get_one_entity)
