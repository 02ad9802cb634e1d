"""A session that sends several statements in one round trip, made with ``pipeline=True``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any
from weakref import ref

from sqlalchemy import Connection

from ..core.transaction import (
    Block,
    Limit,
    LockContext,
    LockPlan,
    LockRequest,
    Reads,
    SessionPart,
    TransactionConnection,
)
from ..dialects import find_strategy
from ..dialects.base import Pipeline, Read
from ..errors import LockNotSupported
from .hold_limit import HoldLimit


class TransactionOutbox(AbstractContextManager[None]):
    """The pipelines of one transaction; also the block in which the session saves.

    :ivar own: of connections that the session itself commits.
    """

    _keeps = _commits = False

    def __init__(self, part: SessionPipeline) -> None:
        self._part = part
        self.by_connection: dict[Connection, Pipeline] = {}
        self.own: list[Pipeline] = []

    def begun(self, connection: Connection, *, lent: bool) -> None:
        """See :class:`Outbox`."""
        if connection in self.by_connection:
            return
        strategy = find_strategy(connection)
        pipeline = None if strategy is None else strategy.pipeline(connection)
        if pipeline is None:
            name = f"{connection.dialect.name}+{connection.dialect.driver}"
            raise LockNotSupported(
                f"LockingSession(pipeline=True) needs PostgreSQL with psycopg 3 and its "
                f"libpq 14 or later, not {name}: make the sessions of this engine without it"
            )
        self.by_connection[connection] = pipeline
        if not lent:
            self.own.append(pipeline)
            if self._keeps:
                pipeline.keep_writes()
            if self._commits:
                self._expect_commit()

    def before_commit(self) -> None:
        """See :class:`Outbox`: later flushes are sent with COMMIT."""
        self._keep_writes()
        self._commits = True
        self._expect_commit()

    def _keep_writes(self) -> None:
        self._keeps = True
        for pipeline in self.own:
            pipeline.keep_writes()

    def _expect_commit(self) -> None:
        alone = len(self.own) == 1
        for pipeline in self.own:
            pipeline.expect_commit(self._part.may_commit, alone=alone)

    def around_save(self) -> Block:
        """See :class:`Outbox`: if the transaction stays open, everything is sent."""
        return None if self._keeps else self

    def __enter__(self) -> None:
        self._keep_writes()

    def __exit__(self, *_: object) -> None:
        self._keeps = self._commits = False
        try:
            self.send_writes()
        finally:
            self.forget_writes()

    def send_writes(self) -> None:
        """See :class:`Outbox`."""
        for pipeline in self.own:
            pipeline.send_writes()

    def forget_writes(self) -> None:
        """Drop the waiting writes."""
        for pipeline in self.own:
            pipeline.forget_writes()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See :class:`Outbox`: its row count is needed, so it is answered at once."""
        for pipeline in self.own:
            pipeline.pause(paused=True)
        try:
            yield
        finally:
            for pipeline in self.own:
                pipeline.pause(paused=False)

    def sends_commit(self) -> bool:
        """See :class:`Outbox`."""
        return any(pipeline.commit_sent for pipeline in self.own)


class SessionPipeline(SessionPart):
    """Several statements of one session in one round trip; it creates each transaction's outbox.

    :param hold_limit: the session's, or None: it is sent with the lock.
    """

    learn: Callable[[Connection, Pipeline], bool] | None = None
    """Asks the server for the transaction together with the writes, if its outcome is looked up."""

    def __init__(self, state: LockContext, hold_limit: HoldLimit | None) -> None:
        self._state: Callable[[], LockContext] = ref(state)  # type: ignore[assignment]
        self._hold_limit = hold_limit
        self.ahead: ReadingAhead | None = None
        """The block in which reads are sent with a lock."""
        self.along: list[Callable[[LockRequest], Iterable[Read]]] = []
        """Return the reads of other parts that follow a lock, to be sent with it."""

    def of_transaction(self) -> TransactionOutbox:
        """See :class:`Pipelined`."""
        return TransactionOutbox(self)

    def _outbox(self) -> TransactionOutbox:
        outbox = self._state().transaction.outbox
        assert isinstance(outbox, TransactionOutbox)
        return outbox

    def around_limit(self, limit: Limit) -> Limit:
        """See :class:`SessionPart`: BEGIN, the limits and the following reads are sent with the lock."""
        return self._locking

    def _locking(
        self, connection: TransactionConnection, _plan: LockPlan, request: LockRequest
    ) -> AbstractContextManager[LockRequest | None]:
        return _Locking(self, connection, request, self._hold_limit)

    def lock_block(
        self, connection: Connection, request: LockRequest, hold_limit: float | None
    ) -> AbstractContextManager[None]:
        """Return the block that sends the lock of this request, with its accompanying statements."""
        reads: Callable[[], Iterable[Read]] = tuple
        if len(request.keys) == 1:  # otherwise a listener's request, while parts are read
            reads = partial(self._reads, self.ahead, request)
        return (
            self._outbox()
            .by_connection[connection]
            .locking(request.seconds, reads, few_rows=request.few_rows, hold_limit=hold_limit)
        )

    def _reads(self, ahead: ReadingAhead | None, request: LockRequest) -> Iterator[Read]:
        """Yield the reads that follow the lock: those of other parts, and of the block."""
        for reads in self.along:
            yield from reads(request)
        if ahead is not None:
            yield from ahead.reads(request.mapper, request.keys[0])

    def around_document(self, reads: Reads) -> ReadingAhead:
        """See :class:`Pipelined`: send these reads with the lock."""
        return ReadingAhead(self, reads)

    def may_commit(self) -> bool:
        """Return whether the waiting writes may be sent together with the COMMIT that comes next."""
        outbox = self._outbox()
        self._state().transaction.refuse()
        if len(outbox.by_connection) > 1:
            outbox.send_writes()  # all of them, before any is committed
            return False
        # Not together with COMMIT: a lost answer would lose this one too.
        ((connection, pipeline),) = outbox.by_connection.items()
        return self.learn is None or not self.learn(connection, pipeline)

    def discard(self) -> None:
        """Drop rows read ahead and waiting writes, before a connection is returned."""
        if self.ahead is not None:
            self.ahead.end_lock()
        self._outbox().forget_writes()


# Classes, not generators, for speed: every lock of a document enters both blocks.


class ReadingAhead(AbstractContextManager[None]):
    """The block of a document, whose reads are sent with its lock; it ends the block of the lock."""

    def __init__(self, part: SessionPipeline, reads: Reads) -> None:
        self._part, self.reads = part, reads
        self._lock: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        self._part.ahead = self

    def __exit__(self, *exception: object) -> None:
        self._part.ahead = None
        self.end_lock(*exception)

    def begin_lock(self, lock: AbstractContextManager[None]) -> None:
        """Begin the block of a lock, which ends with this one."""
        self.end_lock()  # of an earlier try
        lock.__enter__()
        self._lock = lock

    def end_lock(self, kind: Any = None, error: Any = None, traceback: Any = None) -> None:
        """End the block of the lock."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.__exit__(kind, error, traceback)


class _Locking(AbstractContextManager["LockRequest | None"]):
    _lock: AbstractContextManager[None] | None = None

    def __init__(
        self,
        part: SessionPipeline,
        connection: TransactionConnection,
        request: LockRequest,
        hold_limit: HoldLimit | None,
    ) -> None:
        self._part, self._connection, self._request = part, connection, request
        self._hold_limit = hold_limit
        self._hold_seconds: float | None = None

    def __enter__(self) -> LockRequest | None:
        part, connection, request = self._part, self._connection, self._request
        if self._hold_limit is not None:
            self._hold_seconds = self._hold_limit.limit_to_send(connection, request)
        if request.as_is:
            return None
        lock = part.lock_block(connection.connection, request, self._hold_seconds)
        if part.ahead is None:
            lock.__enter__()
            self._lock = lock
        else:
            part.ahead.begin_lock(lock)
        return request if request.seconds is None else request._replace(seconds=None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None:
            self._lock.__exit__(kind, error, traceback)
        limited = self._hold_seconds is not None and not self._request.as_is
        if limited and kind is None and self._hold_limit is not None:
            self._hold_limit.note_server_limited(self._connection)
