"""The conditions under which a document may be locked: who may have it checked out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import Any, Final

from ...checkout_info import Checkout
from ...core.key_text import key_text
from ...errors import CheckedOut, CheckoutLost, DocLockError
from .rows import CheckoutRow


class Condition(ABC):
    """A condition of a lock, for the check-out of the document as it is under the lock."""

    gives = False
    """The document is checked out next, for which the time is needed."""

    @abstractmethod
    def refuses(self, row: CheckoutRow) -> bool:
        """Return whether the lock is refused because of this row."""

    def error(self, row: CheckoutRow, checkout: Checkout | None) -> DocLockError:
        """Return the error of a lock that is refused.

        :param checkout: what the row is; None of a document that is checked in.
        """
        assert checkout is not None
        return CheckedOut(
            f"{key_text(row.owner)} has it checked out since {_minute(checkout.since)}, until "
            f"{_minute(checkout.until)} (UTC); ask again then, give the epoch of the check-out if "
            "it is yours, or take it over by take_over()",
            checkout=checkout,
        )


class Free(Condition):
    """Nobody has it: the condition of a lock without ``checkout=``."""

    def refuses(self, row: CheckoutRow) -> bool:
        """See :class:`Condition`."""
        return row.is_valid


class OwnedBy(Condition):
    """Nobody has it, or this owner."""

    gives = True

    def __init__(self, owner: str) -> None:
        self._owner = owner

    def refuses(self, row: CheckoutRow) -> bool:
        """See :class:`Condition`."""
        return row.is_valid and row.owner != self._owner


class Anybody(Condition):
    """Whoever has it: for a take-over."""

    gives = True

    def refuses(self, row: CheckoutRow) -> bool:
        """See :class:`Condition`."""
        return False


class OfEpoch(Condition):
    """The check-out with this number has not ended: nobody has taken the document since."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def refuses(self, row: CheckoutRow) -> bool:
        """See :class:`Condition`."""
        return row.open_epoch != self._epoch

    def error(self, row: CheckoutRow, checkout: Checkout | None) -> DocLockError:
        """See :class:`Condition`."""
        return lost(self._epoch, row)


FREE: Final = Free()
ANYBODY: Final = Anybody()


def condition_of(given: Any) -> Condition:
    """Return the condition that a caller has given as ``checkout=``.

    :raises TypeError: it is neither a Checkout nor an epoch.
    """
    if given is None:
        return FREE
    if isinstance(given, Condition):
        return given
    if isinstance(given, Checkout):
        return OfEpoch(given.epoch)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"checkout= is a Checkout or its epoch, not {key_text(given)}")
    return OfEpoch(given)


def lost(epoch: int, row: CheckoutRow) -> CheckoutLost:
    """Return the error of a check-out that is over, as this row shows."""
    found = row.open_epoch
    if found is None:
        what = "it was checked in since"
    elif found < epoch:
        what = f"the latest check-out has the epoch {found}"
    else:
        what = f"{key_text(row.owner)} has it since {_minute(row.since)} (UTC), epoch {found}"
    return CheckoutLost(
        f"the check-out with the epoch {key_text(epoch)} is over: {what}; show what it is now, and "
        "check it out again",
        expected=epoch,
        found=found,
    )


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
