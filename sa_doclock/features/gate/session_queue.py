"""The queue of one session at a gate: when it waits, for how long, and when it leaves.

A second session of the same task, or thread, that holds a lock would wait for a connection: it is
refused.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine
from sqlalchemy.pool import NullPool, Pool, SingletonThreadPool, StaticPool

from ...core.documents import document_key, own_table
from ...core.ledger import ledger_of
from ...core.transaction import (
    LockCall,
    LockContext,
    LockRequest,
    SessionPart,
    Take,
    connections_of,
)
from ...dialects import may_wait, strategy_for, translated_schema
from ...dialects.base import Locked, LockStrategy
from ...errors import LockMisuse, LockNotAvailable
from ...events import ReleasedLock
from ...options import LockOptions, base_of, is_row_lock, may_queue
from .document_gate import DocumentGate, queues_of
from .queue import QueueEntry
from .wakeup import observed_wait

_STEPS = 10  # of what is left for the server: it is a part of the statement's text on some

_LIMIT = "sa_doclock.features.gate.longest_wait"


class _Position(NamedTuple):
    """The queues of one call, in their order, with the names in the ledger of what is granted."""

    engine: Engine
    strategy: LockStrategy
    shared: bool
    queues: Mapping[Hashable, Sequence[Hashable]]


class SessionQueue(SessionPart):
    """The places of one session at a gate.

    :ivar waits_in: the gate and the key of the queue that the session waits in now, or None.
    """

    def __init__(self, gate: DocumentGate, state: LockContext) -> None:
        self._places: dict[QueueEntry, Sequence[Hashable]] = {}  # with what is in the ledger then
        self._in_task = _TaskSession(gate)
        self.waits_in: tuple[DocumentGate, Hashable] | None = None
        if not isinstance(gate, DocumentGate):
            raise TypeError(f"gate must be a DocumentGate, not {gate!r}")
        self._gate, self._queues = gate, queues_of(gate)
        self._session = state.session
        self.under_asyncio = False

    def __del__(self) -> None:
        # A session that nobody has closed ends no transaction.
        if self._places:
            self._queues.leave(self._places)
        self._in_task.hold_nothing()

    def around_take(self, take: Take) -> Take:
        def take_in_turn(call: LockCall, request: LockRequest, target: Any) -> Any:
            try:
                result = take(call, self._enter(request, call), target)
                self._note_granted(request)
            except BaseException:
                self._leave_ungranted()
                raise
            return result

        return take_in_turn

    def _enter(self, request: LockRequest, call: LockCall) -> LockRequest:
        """Wait for this session's turn; return the request with what is left of its time.

        :raises LockNotAvailable: the time is over; or somebody else is in the queue, where this
            request does not wait.
        """
        lock = request.lock
        tries = LockOptions.NoWait in lock and request.seconds is not None  # of a batch
        if not self._session().is_active or not (tries or may_queue(lock)):
            return request
        if not request.by_key:
            return request  # it names none before it is sent
        position = self._position(request)
        if position is None:
            return request
        if tries:
            if any(self._queues.is_busy(key, shared=position.shared) for key in position.queues):
                raise call.refused(LockNotAvailable, position.strategy.name)
            return request
        if connections_of(self._session()).all():
            return request  # a session that has a connection asks the database
        return request._replace(seconds=self._wait(position, request.seconds, call))

    def _position(self, request: LockRequest) -> _Position | None:
        """Return the queues for this lock; None where it does not wait."""
        bind = self._session().get_bind(**request.bind_arguments)
        if isinstance(bind, Connection):
            return None
        strategy = strategy_for(bind)
        strategy.check_support(request.lock)
        self.under_asyncio = bind.dialect.is_async
        if not may_wait(strategy, request.lock):
            return None
        shared = base_of(request.lock) is LockOptions.SharedRead
        return _Position(bind, strategy, shared, self._keys(request, bind, strategy))

    def _keys(
        self, request: LockRequest, engine: Engine, strategy: LockStrategy
    ) -> Mapping[Hashable, Sequence[Hashable]]:
        """Return the queues, in this order, with the names in the ledger of what is granted."""
        where = engine.dialect  # the same for an engine and its execution_options()
        mapper, schema = request.mapper, None
        documents: list[Hashable]
        if mapper is None:
            documents = [(engine, request.ident)]
        else:
            documents = [document_key(mapper, key) for key in request.keys]
            of_session = getattr(self._session(), "execution_options", {})  # of SQLAlchemy 2.1
            schema = translated_schema(
                own_table(mapper), engine.get_execution_options(), of_session
            )
        if strategy.statements.locked is Locked.DATABASE:
            return {where: documents} if documents else {}
        return {(where, schema, document): [document] for document in documents}

    def _wait(self, position: _Position, seconds: float | None, call: LockCall) -> float | None:
        """Wait in all queues; return the seconds that are left for the server."""
        limit = seconds
        if seconds is None:  # as the server is configured
            limit = _limit_of(position.strategy, position.engine)
        if limit == 0:
            return seconds
        started = time.monotonic()
        waited = False
        at_file = position.strategy.statements.locked is Locked.DATABASE
        follows = self._gate.next_waits_at_server and not at_file
        for key, documents in position.queues.items():
            place = QueueEntry(key, position.shared, next_may_follow=follows)
            self._places[place] = documents  # before it enters: whatever comes, it is left
            self._queues.join(place, under_asyncio=self.under_asyncio)
            if place.wakeup is not None:
                waited, self.waits_in = True, (self._gate, key)
                spent = time.monotonic() - started
                try:
                    with observed_wait():
                        place.wakeup.wait(None if limit is None else max(limit - spent, 0.0))
                finally:
                    self.waits_in = None
            if not place.admitted:
                raise call.refused(LockNotAvailable, position.strategy.name)
        if seconds is None or not waited:
            return seconds
        left = seconds - (time.monotonic() - started)
        if left <= 0:
            raise call.refused(LockNotAvailable, position.strategy.name)
        return math.ceil(left / seconds * _STEPS) * seconds / _STEPS

    def is_in(self, queue: tuple[DocumentGate, Hashable]) -> bool:
        """Return whether this session was admitted from this queue; another thread may ask."""
        gate, key = queue
        return gate is self._gate and any(
            place.key == key and place.admitted for place in [*self._places]
        )

    def _leave_ungranted(self) -> None:
        self._leave([place for place in self._places if not place.granted])

    def _note_granted(self, request: LockRequest) -> None:
        """Keep the places of what was granted, until it is released."""
        asked = [place for place in self._places if not place.granted]
        if asked:
            self._find_in_ledger(asked)
            self._queues.note_granted([place for place in asked if self._is_held(place)])
            self._leave_ungranted()
        if (
            self._gate.refuses_second_session
            and is_row_lock(request.lock)
            and ledger_of(self._session()).places
        ):
            pools = [one.engine.pool for one in connections_of(self._session()).all()]
            self._in_task.hold(request.document, pools)

    def _find_in_ledger(self, asked: Sequence[QueueEntry]) -> None:
        """Note the ledger's name of a document that was asked for by another form of its key.

        A key asked for as "1" is there as 1.  Of several such places each is kept as long as any
        of the locks, since it is not known which lock it belongs to.
        """
        unknown = [place for place in asked if not self._is_held(place)]
        if unknown:
            known = {document for place in asked for document in self._places[place]}
            granted = [
                document for document in ledger_of(self._session()).held if document not in known
            ]
            self._places.update(dict.fromkeys(unknown, granted))

    def _is_held(self, place: QueueEntry) -> bool:
        return any(
            document in ledger_of(self._session()).places for document in self._places[place]
        )

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        if not ledger_of(self._session()).places:
            self._in_task.hold_nothing()
        if self._places:
            self._leave([p for p in self._places if p.granted and not self._is_held(p)])

    def ended(self, *, committed: bool) -> None:
        self._in_task.hold_nothing()  # also where an interruption came before
        self._leave([*self._places])

    def _leave(self, places: Sequence[QueueEntry]) -> None:
        if places:
            self._queues.leave(places)
        for place in places:  # last: an interruption before it changes nothing
            del self._places[place]

    def around_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        def checked_bind(*args: Any, **kwargs: Any) -> Any:
            bind = get_bind(*args, **kwargs)
            self._refuse_second_session(bind)
            return bind

        return checked_bind

    def _refuse_second_session(self, bind: Engine | Connection) -> None:
        """:raises LockMisuse: this task holds a lock in another session, and a connection."""
        if not self._gate.refuses_second_session or isinstance(bind, Connection):
            return
        for other in self._in_task.others():
            if (
                other.gate is self._gate
                and bind.pool in other.pools
                and _can_be_exhausted(bind.pool)
                and not any(
                    one.engine is bind.engine for one in connections_of(self._session()).all()
                )
            ):
                raise LockMisuse(
                    f"this task or thread holds {other.document} in another session, and now wants "
                    "a second connection of the same pool: if every connection in the pool belongs to a "
                    "task that waits for a second one, all of them hang. Pass the first session on, end its "
                    "transaction first, or use a separate engine; "
                    'DocumentGate(second_session="allow") permits it'
                )


def _limit_of(strategy: LockStrategy, engine: Engine) -> float | None:
    """Return how long the server lets a lock wait that has no lock_timeout; ask it once."""
    if _LIMIT not in strategy.findings:
        with engine.connect() as connection:
            strategy.findings[_LIMIT] = strategy.waits.longest(connection)
    found: float | None = strategy.findings[_LIMIT]
    return found


class _TaskSession:
    """One session, as the others of its task see it."""

    def __init__(self, gate: object) -> None:
        self.gate = gate
        self.pools: frozenset[Pool] = frozenset()
        self.document = ""
        self._thread = 0
        self._task: weakref.ref[asyncio.Task[Any]] | None = None

    def hold(self, document: str, pools: Iterable[Pool]) -> None:
        """Note a lock that was granted in this task and thread, on connections of these pools."""
        if not self.pools:
            self.document = document
        self.pools = frozenset(pools)
        task = _task()
        self._thread = threading.get_ident()
        self._task = None if task is None else weakref.ref(task)
        known = _here.get()
        if self not in known:
            # Another tuple: a context that was copied before does not see it.
            _here.set((*(other for other in known if other.pools), self))

    def hold_nothing(self) -> None:
        """Note that all locks are released, in whatever task that was done."""
        self.pools = frozenset()

    def others(self) -> Iterator[_TaskSession]:
        """Return the others of this task and thread that hold a lock."""
        return (one for one in _here.get() if one is not self and one.pools and one.is_here)

    @property
    def is_here(self) -> bool:
        """Return whether its last lock was taken in this task and thread."""
        task = None if self._task is None else self._task()
        return self._thread == threading.get_ident() and task is _task()


def _can_be_exhausted(pool: Pool) -> bool:
    """Return whether a session may have to wait for a connection of this pool.

    A StaticPool and a SingletonThreadPool give one connection to all who come, and a NullPool
    makes one for each.  A QueuePool of max_overflow=-1 or pool_size=0 has no limit, but no public
    attribute says so: it counts as one that has.
    """
    return not isinstance(pool, (NullPool, SingletonThreadPool, StaticPool))


# A context variable, so that a thread of a pool, or a task that was started while a lock is held,
# does not count as the one that has taken it.
_here: ContextVar[tuple[_TaskSession, ...]] = ContextVar("sa_doclock.here", default=())


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
