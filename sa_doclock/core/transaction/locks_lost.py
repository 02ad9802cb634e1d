"""The locks of a transaction that another than the session has ended; they forbid every write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from ...errors import LockLost
from ...keys import DocumentKey, document_label, public_key
from ..ledger import Ledger, NamedKey

Places = Mapping[DocumentKey | NamedKey, str]
"""Documents and names whose lock was lost, each with how: "committed", "rolled back" or "lost"."""


def refuse_without(lost: Places, ledger: Ledger) -> None:
    """:raises LockLost: one of the locks that were lost was not taken again since."""
    error = lost_error(lost, ledger)
    if error is not None:
        raise error


def lost_error(lost: Places, ledger: Ledger) -> LockLost | None:
    """Return the error of a lock that was lost, and not taken again since; None: there is none."""
    place = next((place for place in lost if not ledger.has(place)), None)
    if place is None:
        return None
    how = "ended" if lost[place] == "lost" else lost[place]
    error = LockLost(
        f"the transaction that held the lock was {how} outside of this session: on its "
        "Connection, by a statement that commits, or by the driver; the session does not write "
        "without the lock: lock again, or call rollback()"
    )
    error.entity, error.ident = document_of(place)
    error.args = (f"{document_label(error.entity, error.ident)}: {error.args[0]}",)
    return error


def document_of(place: DocumentKey | NamedKey) -> tuple[type[Any] | None, Any]:
    """Return the class and the key of a document; of a named lock None and its name."""
    if isinstance(place[0], Engine):
        return None, place[1]
    return place[0], public_key(place[1])
