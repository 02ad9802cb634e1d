"""The marks of transactions, by which the server tells one from the next; a dialect may leave them out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final

from sqlalchemy import Connection

UNMARKED: Final = object()
"""The answer of ``mark_transaction()`` where the open transaction cannot be marked now."""


class TransactionMarks(ABC):
    """The marks of transactions."""

    is_savepoint: ClassVar[bool] = False
    """The mark is a savepoint: it is used up by ``has_mark()``, and a savepoint of the program is
    neither set nor ended while there is one."""

    @abstractmethod
    def mark_transaction(self, connection: Connection) -> object:
        """Return a mark of the open transaction, by which ``has_mark()`` knows it again.

        Called in front of a statement that nobody here has built, where locks are held.  UNMARKED:
        this transaction cannot be marked now; where the statement succeeds, the locks count as lost.
        """

    @abstractmethod
    def has_mark(self, connection: Connection, mark: object) -> bool:
        """Return whether the open transaction is the one with this mark.

        Asked before the next flush, lock or commit.  True too where nothing can be done in the
        transaction any more: the next statement tells why.
        """
