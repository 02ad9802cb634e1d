"""Several statements in one round trip, where a driver can send them so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Select

Read = tuple[Select[Any], Mapping[str, Any]]
"""A statement and its parameters."""


class Pipeline(Protocol):
    """Several statements of one connection in one round trip.

    :ivar commit_sent: True where the error that is raised now is one of statements that were sent
        together with COMMIT.
    """

    commit_sent: bool

    def locking(
        self,
        seconds: float | None,
        reads: Callable[[], Iterable[Read]],
        *,
        few_rows: bool,
        hold_limit: float | None = None,
    ) -> AbstractContextManager[None]:
        """Send a lock of this block together with BEGIN, its limits and these reads.

        ``few_rows`` tells that it is of a few rows by their keys, as for ``LockWaits.limited()``.
        The reads come after the lock.  Code that executes one of them next, in this block, gets
        the result that came along; any other statement discards these results.
        """

    def keep_writes(self) -> None:
        """Keep the writes of a flush back from now on; any other statement is executed after them."""

    def expect_commit(self, may_commit: Callable[[], bool], *, alone: bool) -> None:
        """Send what is kept back together with COMMIT, which comes next.

        :param may_commit: called when COMMIT is due; returns whether to send it along.
        :param alone: the transaction has no other connection, so that ``may_commit()`` need not be
            called where no statement was executed.
        """

    def send_writes(self) -> None:
        """Send the writes that are kept back.  :raises StaleDataError: one finds no row."""

    def ask(self, question: str) -> Sequence[str | None]:
        """Send the writes that are kept back, and a question behind them, in one round trip.

        :param question: a SELECT without parameters that returns one row of texts.
        :returns: the row.
        """

    def forget_writes(self) -> None:
        """Keep no more writes back, and discard the unsent ones."""

    def pause(self, *, paused: bool) -> None:
        """Keep no writes back while paused."""
