"""The documents that a transaction may write: those that it holds ForUpdate, and those that are new."""

from __future__ import annotations

from ...core.ledger import Ledger
from ...core.lock_info import DocumentKey, Identity


class WritableDocuments:
    """The writable documents of one session's transaction."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._inserted: dict[DocumentKey, None] = {}

    def may_write(self, key: DocumentKey) -> bool:
        """Return whether the document is held ForUpdate, or is new in this transaction."""
        return self.ledger.is_writable(key) or key in self._inserted

    def add_inserted(self, key: DocumentKey) -> None:
        """Note a document whose header this transaction has inserted, or another name of one.

        In a collation that ignores case, ``ABC`` is a name of the document ``abc``.
        """
        self._inserted[key] = None

    def add_key(self, key: DocumentKey, identity: Identity) -> None:
        """Note that the primary key of a document was changed to this; it is held by both."""
        held = self.ledger.held.get(key)
        if held is not None:
            self.ledger.record((key[0], identity), held)
        elif key in self._inserted:
            self.add_inserted((key[0], identity))

    def mark(self) -> int:
        """Return the number of new documents."""
        return len(self._inserted)

    def roll_back_to(self, mark: int) -> None:
        """Forget the new documents that came since."""
        while len(self._inserted) > mark:
            self._inserted.popitem()
