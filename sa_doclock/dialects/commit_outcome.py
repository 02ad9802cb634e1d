"""The outcome of a COMMIT whose answer was lost, asked of the server; a dialect may omit it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from sqlalchemy import Connection


class Outcome(Enum):
    """The end of a transaction, as the server knows it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    IN_PROGRESS = "in progress"
    UNKNOWN = "unknown"


class CommitOutcomes(ABC):
    """The questions about one transaction: its id before COMMIT, and its end afterwards."""

    question: ClassVar[str]
    """A SELECT without parameters that returns one row, by which ``outcome()`` identifies the
    transaction. It is asked right before COMMIT; its first column is None if nothing was
    written.
    """

    @abstractmethod
    def outcome(self, connection: Connection, transaction: Sequence[Any]) -> Outcome:
        """Return the end of the transaction.

        :param connection: another connection, perhaps to another server than the transaction's.
        :param transaction: the row that ``question`` returned.
        """
