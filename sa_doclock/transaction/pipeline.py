"""A session that sends several statements in one round trip, made with ``pipeline=True``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import ReferenceType

from sqlalchemy import Connection

from ..dialects import find_strategy
from ..dialects.base import Pipeline, Read
from ..errors import LockNotSupported
from ..lock_info import Identity
from .request import LockRequest

if TYPE_CHECKING:
    from .state import TransactionState

T = TypeVar("T")

ReadsOf = Callable[[Any, Identity], Iterable[Read]]
"""Returns the reads that follow the lock of the document of this class and key."""

_NOTHING: Final = nullcontext()


class SessionPipeline(AbstractContextManager[None]):
    """The pipelines of the connections of one session's transaction.

    :param state: of the session, whose own this is.
    """

    def __init__(self, state: ReferenceType[TransactionState]) -> None:
        self._state = state
        self._pipelines: dict[Connection, Pipeline] = {}
        self._own: list[Pipeline] = []  # of connections whose COMMIT is the session's
        self.ahead: ReadingAhead | None = None
        """The block in which reads are sent with a lock."""
        self._committing = False

    def add(self, connection: Connection, *, lent: bool) -> None:
        """Note a connection that has begun its part of the transaction.

        :param lent: its COMMIT may be another's.
        """
        if connection in self._pipelines:
            return
        strategy = find_strategy(connection)
        pipeline = None if strategy is None else strategy.pipeline(connection)
        if pipeline is None:
            name = f"{connection.dialect.name}+{connection.dialect.driver}"
            raise LockNotSupported(
                f"LockingSession(pipeline=True) needs PostgreSQL with psycopg 3 and its "
                f"libpq 14 or later, not {name}: make the sessions of this engine without it"
            )
        self._pipelines[connection] = pipeline
        if not lent:
            self._own.append(pipeline)
            if self._committing:
                self._keep_writes()

    def end(self) -> None:
        """Forget the connections: the transaction is over."""
        for pipeline in self._own:
            pipeline.forget_writes()
        self._pipelines.clear()
        self._own.clear()
        self._committing = False

    def locking(
        self,
        connection: Connection,
        request: LockRequest,
        *,
        few_rows: bool,
        hold_limit: float | None = None,
    ) -> AbstractContextManager[None]:
        """Take a lock in this block; BEGIN, its limits and the reads after it travel with it.

        :param few_rows: it is of a few rows by their keys.
        :param hold_limit: seconds after which the server ends the transaction, where it is idle.
        """
        pipeline = self._pipelines[connection]
        ahead = self.ahead
        reads: Callable[[], Iterable[Read]] = tuple
        if ahead is not None and len(request.keys) == 1:  # else of a listener, while parts are read
            reads = partial(ahead.reads, request.mapper, request.keys[0])
        lock = pipeline.locking(request.seconds, reads, few_rows=few_rows, hold_limit=hold_limit)
        return lock if ahead is None else _Within(ahead, lock)

    def reading_ahead(self, reads: ReadsOf) -> AbstractContextManager[None]:
        """Send these reads with the lock of one document that is taken in this block."""
        return ReadingAhead(self, reads)

    def before_commit(self) -> None:
        """Keep what is flushed from now on, to be sent with COMMIT."""
        self._committing = True
        self._keep_writes()

    def _keep_writes(self) -> None:
        alone = len(self._own) == 1
        for pipeline in self._own:
            pipeline.keep_writes(self._may_commit, alone=alone)

    def committing(self) -> AbstractContextManager[None]:
        """Flush and commit in this block; where the transaction stays open, all of it is sent."""
        return _NOTHING if self._committing else self

    def __enter__(self) -> None:
        self.before_commit()

    def __exit__(self, *_: object) -> None:
        self._committing = False
        try:
            self.send_writes()
        finally:
            self.discard()

    def _may_commit(self) -> bool:
        state = self._state()
        if state is not None:
            state.refuse_failed()
        if len(self._pipelines) == 1:
            return True
        self.send_writes()  # all of them, before any is committed
        return False

    def send_writes(self) -> None:
        """Send what waits for a COMMIT that is another's, or does not come."""
        for pipeline in self._own:
            pipeline.send_writes()

    @contextmanager
    def answered(self, block: AbstractContextManager[T]) -> Iterator[T]:
        """Have every statement answered at once in this block."""
        for pipeline in self._own:
            pipeline.pause(paused=True)
        try:
            with block as value:
                yield value
        finally:
            for pipeline in self._own:
                pipeline.pause(paused=False)

    def commit_sent(self) -> bool:
        """Return whether the error that is raised now is one of statements sent together with COMMIT."""
        return any(pipeline.commit_sent for pipeline in self._own)

    def discard(self) -> None:
        """Drop what was read ahead and what waits, before a connection is given back."""
        if self.ahead is not None:
            self.ahead.leave()
        for pipeline in self._own:
            pipeline.forget_writes()


class ReadingAhead(AbstractContextManager[None]):
    """A block of reads that are sent with its lock, whose own block goes on until this one ends."""

    def __init__(self, pipeline: SessionPipeline, reads: ReadsOf) -> None:
        self._pipeline = pipeline
        self.reads = reads
        self._lock: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._pipeline.ahead = self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pipeline.ahead = None
        self.leave(kind, error, traceback)

    def enter(self, lock: AbstractContextManager[None]) -> None:
        """Begin the block of a lock."""
        self.leave()  # that of another try
        lock.__enter__()
        self._lock = lock

    def leave(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        """End the block of the lock, where there is one."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.__exit__(kind, error, traceback)


class _Within(AbstractContextManager[None]):
    """Begins the block of a lock, and leaves its end to the block around it."""

    def __init__(self, ahead: ReadingAhead, lock: AbstractContextManager[None]) -> None:
        self._ahead = ahead
        self._lock = lock

    def __enter__(self) -> None:
        self._ahead.enter(self._lock)

    def __exit__(self, *_: object) -> None:
        """Go on."""
