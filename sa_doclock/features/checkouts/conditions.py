"""The conditions under which a document may be locked: who may have it checked out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...checkout_info import NOBODY, Checkout
from ...errors import CheckedOut, CheckoutLost, DocLockError
from ...keys import key_text
from .table_rows import CheckoutRow


@dataclass(frozen=True)
class CheckoutCondition:
    """A condition on the document's check-out, compared under the lock.

    :ivar refuses: returns whether this row refuses the lock.
    :ivar gives: the document will be checked out, which needs the time.
    :ivar epoch: of the check-out that must not have ended.
    """

    refuses: Callable[[CheckoutRow], bool]
    gives: bool = False
    epoch: int | None = None

    def error(self, row: CheckoutRow, checkout: Checkout | None) -> DocLockError:
        """Return the error of a refused lock.

        :param checkout: the row's check-out; None: the document is checked in.
        """
        if self.epoch is not None:
            return lost(self.epoch, row)
        assert checkout is not None
        return CheckedOut(
            f"{key_text(row.owner)} has it checked out since {_minute(checkout.since)}, until "
            f"{_minute(checkout.until)} (UTC); try again then, give the epoch if the check-out is "
            "yours, or call take_over()",
            checkout=checkout,
        )


FREE: Final = CheckoutCondition(lambda row: row.is_valid)
"""The condition of a lock without ``checkout=``: no owner."""

ANYBODY: Final = CheckoutCondition(lambda _: False, gives=True)
"""The condition of a take-over: any owner."""


def owned_by(owner: str) -> CheckoutCondition:
    """Return the condition that nobody has it, or this owner."""
    return CheckoutCondition(lambda row: row.is_valid and row.owner != owner, gives=True)


def _of_epoch(epoch: int) -> CheckoutCondition:
    return CheckoutCondition(lambda row: row.open_epoch != epoch, epoch=epoch)


def condition_of(given: Any) -> CheckoutCondition:
    """Return the condition for ``checkout=``.

    :raises TypeError: it is neither a Checkout nor an epoch.
    """
    if given is None or given is NOBODY:
        return FREE
    if isinstance(given, CheckoutCondition):
        return given
    if isinstance(given, Checkout):
        return _of_epoch(given.epoch)
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"checkout= is a Checkout or its epoch, not {key_text(given)}")
    return _of_epoch(given)


def lost(epoch: int, row: CheckoutRow) -> CheckoutLost:
    """Return the error of a check-out that has ended, according to this row."""
    found, latest = row.open_epoch, 0 if row.id is None else row.epoch
    named = f"check-out with the epoch {key_text(epoch)}"
    if latest < epoch:
        reason = (
            f"there was no {named}, the latest one is {latest}"
            if latest
            else f"there was no {named}"
        )
    elif found is None:
        reason = f"the {named} has ended: the document was checked in"
    else:
        owner = f"{key_text(row.owner)} has it since {_minute(row.since)} (UTC), epoch {found}"
        reason = f"the {named} has ended: {owner}"
    return CheckoutLost(
        f"{reason}; reload the document and check it out again", expected=epoch, found=found
    )


def _minute(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}"
