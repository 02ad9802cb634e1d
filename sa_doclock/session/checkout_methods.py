"""The methods of a session for check-outs, which outlive its transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from ..checkout_info import Checkout
from ..options import LockTimeout
from .block_methods import BlockMethods

if TYPE_CHECKING:
    from ..features.checkouts import CheckOutCalls, CheckoutOrEpoch

R_co = TypeVar("R_co", covariant=True)

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

        The method takes the ForUpdate lock of the header and writes to the session's table of check-outs.
        The check-out takes effect with the commit and outlives the transaction: it holds no lock,
        transaction or connection.  The database's clock decides when the lease ends.

        If the owner has the document already, the lease begins again under the same epoch.  If the
        document is free, or its lease has ended, the epoch is one greater than before.

        Not promised: ``text()``, a session without ``checkouts=`` and other programs can still write to
        the document.

        Example::

            checkout = session.check_out(Order, 42, "ann", lease=timedelta(minutes=15))
            session.commit()
            epoch = checkout.epoch  # for the form

        :param entity: a class that is declared by ``@document(checkout=True)``.
        :param ident: the primary key, as for :meth:`get_entity`.
        :param owner: the owner's name: a text of 1 to 255 characters, such as a user's id.
        :param lease: the time of the check-out from now on: a timedelta, or seconds; rounded up to
            milliseconds.
        :param note: a text that others see with the owner; None keeps the note of the same check-out.
        :param lock_timeout: as for :meth:`get_entity`.
        :raises CheckedOut: another owner has it; see ``error.checkout``.
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
        """Check a document out, even if another owner has it.

        The epoch is always new, also for the same owner: whoever had the document before can no longer
        save, and gets :class:`CheckoutLost`.  For the parameters and errors see :meth:`check_out`.

        Example::

            checkout = session.take_over(Order, 42, "bob")
            session.commit()
        """
        return self._checkouts().check_out(
            entity, ident, owner, lease, note, lock_timeout, takes_over=True
        )

    @overload
    def renew(self, checkout: Checkout, lease: timedelta | float | None = None) -> Checkout: ...

    @overload
    def renew(
        self, entity: type[Any], ident: Any, epoch: int, lease: timedelta | float | None = None
    ) -> Checkout: ...

    def renew(self, *args: Any, **kwargs: Any) -> Checkout:
        """Renew a check-out: its lease begins again now.

        ``renew(checkout)``, or ``renew(Order, 42, epoch)`` for a page that keeps the epoch alone.

        The new end takes effect with the commit.  The method takes no lock of the header, so it does not
        wait while the document is being written.  A check-out that has expired can be renewed until
        somebody else checks the document out.

        ``checkout`` is the return value of :meth:`check_out`, :meth:`renew` or :meth:`checkout_of`.
        ``lease`` is a timedelta or a number of seconds; None repeats the last one.

        Example::

            checkout = session.check_out(Order, 42, "ann")
            checkout = session.renew(checkout)
            session.commit()

        :returns: the same check-out with its new end.
        :raises CheckoutLost: the document was taken over, or checked in.
        :raises LockMisuse: as :meth:`check_out`.
        """
        given = _epoch_to_renew if _names_epoch(args, kwargs) else _checkout_to_renew
        return self._checkouts().renew(*given(*args, **kwargs))

    @overload
    def check_in(self, checkout: Checkout) -> None: ...

    @overload
    def check_in(self, entity: type[Any], ident: Any, epoch: int) -> None: ...

    def check_in(self, *args: Any, **kwargs: Any) -> None:
        """End a check-out, so that the document is free.

        ``check_in(checkout)``, or ``check_in(Order, 42, epoch)`` for a page that keeps the epoch alone.

        It takes effect with the commit, so one transaction can save the last change and check in.  The
        method takes no lock of the header.

        Example::

            checkout = session.check_out(Order, 42, "ann")
            session.check_in(checkout)
            session.commit()

        :raises CheckoutLost: the document was taken over, or is checked in already.
        :raises LockMisuse: as :meth:`check_out`.
        """
        given = _epoch_to_end if _names_epoch(args, kwargs) else _checkout_to_end
        self._checkouts().check_in(given(*args, **kwargs))

    def checkout_of(
        self, entity: type[Any], ident: Any, *, expired: bool = False
    ) -> Checkout | None:
        """Return the check-out of a document; None if there is none or its lease has ended.

        A plain read: it neither waits nor locks.

        Example::

            checkout = session.checkout_of(Order, 42)
            if checkout is not None:
                print(f"{checkout.owner} edits it until {checkout.until}")

        :param expired: also return a check-out whose lease has ended, if nobody has checked the document
            out since: its epoch is still valid.
        :raises LockMisuse: as :meth:`check_out`.
        """
        return self._checkouts().find(entity, ident, expired=expired)

    def checkouts(
        self, entity: type[Any] | None = None, *, owner: str | None = None, expired: bool = False
    ) -> list[Checkout]:
        """Return the check-outs of this session's table, the oldest first.

        A plain read, of the classes that this program declares with ``checkout=True``.  If a class cannot
        read the key of a check-out, its ``unreadable`` is True, and its ``ident`` is the stored text.

        Example::

            for checkout in session.checkouts(Order, owner="ann"):
                print(checkout.ident, checkout.until)

        :param entity: only those of this class and its hierarchy.
        :param owner: only those of this owner.
        :param expired: also those whose lease has ended, unless they were taken over or checked in; their
            ``expired`` is True.
        :raises LockMisuse: as :meth:`check_out`.
        """
        return self._checkouts().find_all(entity, owner, expired=expired)

    def _checkouts(self) -> CheckOutCalls:
        """:raises LockMisuse: the session was created without ``checkouts=``."""
        from ..features.checkouts import CheckOutCalls  # noqa: PLC0415  # of a session that uses it

        return CheckOutCalls(self._context, self.get_one_entity)


class Renew(Protocol[R_co]):
    """The type of ``renew()`` in a session that forwards it: mypy keeps one overload of a method."""

    @overload
    def __call__(self, checkout: Checkout, lease: timedelta | float | None = None) -> R_co: ...

    @overload
    def __call__(
        self, entity: type[Any], ident: Any, epoch: int, lease: timedelta | float | None = None
    ) -> R_co: ...


class CheckIn(Protocol[R_co]):
    """The type of ``check_in()`` in such a session."""

    @overload
    def __call__(self, checkout: Checkout) -> R_co: ...

    @overload
    def __call__(self, entity: type[Any], ident: Any, epoch: int) -> R_co: ...


def _checkout_to_renew(
    checkout: Checkout, lease: timedelta | float | None = None
) -> tuple[CheckoutOrEpoch, timedelta | float | None]:
    return checkout, lease


def _epoch_to_renew(
    entity: type[Any], ident: Any, epoch: int, lease: timedelta | float | None = None
) -> tuple[CheckoutOrEpoch, timedelta | float | None]:
    return (entity, ident, epoch), lease


def _checkout_to_end(checkout: Checkout) -> CheckoutOrEpoch:
    return checkout


def _epoch_to_end(entity: type[Any], ident: Any, epoch: int) -> CheckoutOrEpoch:
    return entity, ident, epoch


# Shown in the TypeError of a wrong call.
_checkout_to_renew.__qualname__ = _epoch_to_renew.__qualname__ = "renew"
_checkout_to_end.__qualname__ = _epoch_to_end.__qualname__ = "check_in"


def _names_epoch(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a call passes a document and an epoch instead of a Checkout."""
    return isinstance(args[0], type) if args else "entity" in kwargs
