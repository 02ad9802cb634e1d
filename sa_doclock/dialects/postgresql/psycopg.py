"""The pipeline of one connection of psycopg 3."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from sqlalchemy import Connection

from ..base import Read
from .deferred_writes import DeferredWrites
from .pipelined_lock import PipelinedLock


class PsycopgPipeline:
    """A :class:`sa_doclock.dialects.base.Pipeline` by psycopg 3."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._writes: DeferredWrites | None = None

    def locking(
        self, seconds: float | None, reads: Callable[[], Iterable[Read]]
    ) -> AbstractContextManager[None]:
        return PipelinedLock(self._connection, seconds, reads).installed()

    def keep_writes(self, may_commit: Callable[[], bool]) -> None:
        if self._writes is None:
            self._writes = DeferredWrites(self._connection, may_commit)
        self._writes.start()

    def send_writes(self) -> None:
        if self._writes is not None:
            self._writes.send()

    def forget_writes(self) -> None:
        if self._writes is not None:
            self._writes.stop()

    def pause(self, *, paused: bool) -> None:
        if self._writes is not None:
            self._writes.paused = paused
