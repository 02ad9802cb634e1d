"""The interface of a pipeline, which sends several statements in one round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sqlalchemy import Select

Read = tuple[Select[Any], Mapping[str, Any]]
"""A statement and its parameters."""


class Pipeline(Protocol):
    """Several statements of one connection in one round trip."""

    def locking(
        self, seconds: float | None, reads: Callable[[], Iterable[Read]]
    ) -> AbstractContextManager[None]:
        """Send a lock of this block together with BEGIN, its limit and these reads.

        The reads come after the lock.  Code that executes one of them next, in this block, gets
        the result that came along; any other statement discards these results.
        """

    def keep_writes(self, may_commit: Callable[[], bool]) -> None:
        """Keep the writes of a flush back from now on, and send them together with COMMIT.

        Any other statement is executed after the writes that are kept back.

        :param may_commit: called when COMMIT is due; returns whether to send it along.
        """

    def send_writes(self) -> None:
        """Send the writes that are kept back.  :raises StaleDataError: one finds no row."""

    def forget_writes(self) -> None:
        """Keep no more writes back, and discard those that were not sent."""

    def pause(self, *, paused: bool) -> None:
        """Keep no writes back while paused."""
