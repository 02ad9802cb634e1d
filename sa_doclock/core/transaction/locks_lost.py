"""The locks of a transaction that another than the session has ended; they forbid every write."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Engine

from ...errors import LockLost
from ..ledger import Ledger, NamedKey
from ..lock_info import DocumentKey, document_label, public_key


class LocksLost:
    """The locks that were lost since the session's transaction began, each with how."""

    def __init__(self) -> None:
        self._outcomes: dict[DocumentKey | NamedKey, str] = {}

    def any(self) -> bool:
        """Return whether any lock was lost."""
        return bool(self._outcomes)

    def note(self, places: Iterable[DocumentKey | NamedKey], outcome: str) -> None:
        """Note that these were lost: "committed", "rolled back" or "lost"."""
        self._outcomes.update(dict.fromkeys(places, outcome))

    def refuse(self, ledger: Ledger) -> None:
        """:raises LockLost: one of them was not taken again since."""
        for place, outcome in self._outcomes.items():
            if not ledger.has(place):
                raise _ended_by_other(place, outcome)

    def clear(self) -> None:
        """Forget them: the session's transaction has ended."""
        self._outcomes.clear()


def _ended_by_other(place: DocumentKey | NamedKey, outcome: str) -> LockLost:
    """Return the error of a write after the program, or the driver, has ended the transaction."""
    how = "ended" if outcome == "lost" else outcome
    error = LockLost(
        f"the transaction that held the lock was {how} by another than this session: by the "
        "session's Connection, by a statement that commits, or by the driver; nothing is "
        "written without the lock: lock again, or call rollback()"
    )
    error.entity, error.ident = document_of(place)
    error.args = (f"{document_label(error.entity, error.ident)}: {error.args[0]}",)
    return error


def document_of(place: DocumentKey | NamedKey) -> tuple[type[Any] | None, Any]:
    """Return the class and the key of a document; of a named lock None and its name."""
    if isinstance(place[0], Engine):
        return None, place[1]
    return place[0], public_key(place[1])
