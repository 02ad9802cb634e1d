"""Several statements in one round trip, if a driver can send them so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Select

Read = tuple[Select[Any], Mapping[str, Any]]
"""A statement and its parameters."""


class Pipeline(Protocol):
    """Several statements of one connection in one round trip.

    :ivar commit_sent: True if the current error is one of statements that were sent with COMMIT.
    """

    commit_sent: bool

    def locking(
        self,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]] | None,
        *,
        few_rows: bool,
        hold_limit: float | None = None,
    ) -> AbstractContextManager[None]:
        """Send a lock of this block together with BEGIN, its limits and these reads.

        ``few_rows``: it locks a few rows by their keys, as for ``LockWaits.limited()``.  The reads
        follow the lock.  If one of them is executed next, in this block, it gets the early result;
        any other statement discards these results.
        """

    def keep_writes(self) -> None:
        """Keep the writes of a flush back from now on; any other statement is executed after them."""

    def expect_commit(self, may_commit: Callable[[], bool], *, alone: bool) -> None:
        """Send the kept writes together with the COMMIT that comes next.

        :param may_commit: called when COMMIT is due; returns whether to send it too.
        :param alone: the transaction has no other connection, so ``may_commit()`` need not be
            called if no statement was executed.
        """

    def send_writes(self) -> None:
        """Send the kept writes.  :raises StaleDataError: one finds no row."""

    def ask(self, question: str) -> Sequence[str | None]:
        """Send the kept writes, followed by a question, in one round trip.

        :param question: a SELECT without parameters that returns one row of texts.
        :returns: the row.
        """

    def forget_writes(self) -> None:
        """Stop keeping writes back, and discard the unsent ones."""

    def pause(self, *, paused: bool) -> None:
        """Keep no writes back while paused."""
