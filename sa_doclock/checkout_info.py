"""A check-out of a document, as the database has it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

NOBODY: Final[Any] = object()
"""The value of ``checkout=`` that requires a document without a check-out, even if it is already locked."""

NO_TABLE: Final = (
    "this session has no table of check-outs: make it with LockingSession(checkouts=table), where table "
    "is checkout_table(metadata)"
)


@dataclass(frozen=True)
class Checkout:
    """A check-out: who has a document, since when and until when.

    It shows the database at the time of the read, and does not change by itself. All times are by the
    database's clock.

    :ivar entity: the root mapped class of the document, as in ``held_locks``.
    :ivar ident: its primary key: a scalar, or a tuple if it is composite.
    :ivar owner: who has it.
    :ivar epoch: the number of this check-out. Each change of the owner raises the document's epoch,
        so a check-out with an older one has ended.
    :ivar since: when this owner got it (UTC).
    :ivar until: when it expires unless it is renewed (UTC).
    :ivar note: the owner's note.
    :ivar lease: the length of the lease, a timedelta, which ``renew()`` repeats.
    :ivar expired: True if it had expired when it was read.
    :ivar unreadable: True if the class cannot read the key, for example because its type has changed.
        ``ident`` is then the stored text.
    """

    entity: type[Any]
    ident: Any
    owner: str
    epoch: int
    since: datetime
    until: datetime
    note: str | None = None
    lease: timedelta = field(default=timedelta(minutes=15), repr=False)
    expired: bool = field(default=False, repr=False)
    unreadable: bool = field(default=False, repr=False)
