"""The queue of one session at a gate: when it waits, for how long, and when it leaves.

A second session of the same task, or thread, that holds a lock would wait for a connection: it is
refused.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

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
from ...process_waits import observed_wait
from .document_gate import DocumentGate, queues_of
from .queue import QueueEntry

_STEPS = 10  # of what is left for the server: it is a part of the statement's text on some

_LIMIT = "sa_doclock.features.gate.longest_wait"


class SessionQueue(SessionPart):
    """The places of one session at a gate.

    :ivar waits_in: the gate and the key of the queue that the session waits in now, or None.
    :ivar pools: of its connections, while it holds a lock on rows: of ``document``, taken in the task
        or thread ``where``.
    """

    def __init__(self, gate: DocumentGate, state: LockContext) -> None:
        self._places: dict[QueueEntry, Sequence[Hashable]] = {}  # with what is in the ledger then
        self.waits_in: tuple[DocumentGate, Hashable] | None = None
        if not isinstance(gate, DocumentGate):
            raise TypeError(f"gate must be a DocumentGate, not {gate!r}")
        self.gate, self._queues = gate, queues_of(gate)
        self._session = state.session
        self.pools: frozenset[Pool] = frozenset()
        self.document, self.where = "", object()

    def __del__(self) -> None:
        # A session that nobody has closed ends no transaction.
        if self._places:
            self._queues.leave(self._places)

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
        lock, session = request.lock, self._session()
        tries = LockOptions.NoWait in lock and request.seconds is not None  # of a batch
        # Without a key it names no document before it is sent.
        if not (session.is_active and request.by_key and (tries or may_queue(lock))):
            return request
        engine = session.get_bind(**request.bind_arguments)
        if isinstance(engine, Connection):  # of its own
            return request
        strategy = strategy_for(engine)
        strategy.check_support(lock)
        if not may_wait(strategy, lock):
            return request
        shared = base_of(lock) is LockOptions.SharedRead
        queues = self._queues_for(request, engine, strategy)
        if tries and any(self._queues.is_busy(key, shared=shared) for key in queues):
            raise call.refused(LockNotAvailable, strategy.name)
        if tries or connections_of(session).all():  # it asks the database
            return request
        limit = _limit_of(strategy, engine) if request.seconds is None else request.seconds
        follows = self.gate.next_waits_at_server and not _is_of_file(strategy)
        entries = {QueueEntry(key, shared, follows): queues[key] for key in queues}
        left = (
            1.0 if limit == 0 else self._wait(entries, limit, under_asyncio=engine.dialect.is_async)
        )
        if left <= 0:
            raise call.refused(LockNotAvailable, strategy.name)
        if request.seconds is None or left == 1:
            return request
        return request._replace(seconds=math.ceil(left * _STEPS) * request.seconds / _STEPS)

    def _wait(
        self,
        entries: Mapping[QueueEntry, Sequence[Hashable]],
        limit: float | None,
        *,
        under_asyncio: bool,
    ) -> float:
        """Wait in all queues; return the share of the limit that is left, 0 if the wait was in vain."""
        started, left = time.monotonic(), 1.0
        for entry, documents in entries.items():
            self._places[entry] = documents  # before it enters: whatever comes, it is left
            self._queues.join(entry, under_asyncio=under_asyncio)
            if entry.wakeup is not None:
                self.waits_in = self.gate, entry.key
                try:
                    with observed_wait():
                        entry.wakeup.wait(None if limit is None else max(left, 0.0) * limit)
                finally:
                    self.waits_in = None
                if limit is not None:
                    left = 1 - (time.monotonic() - started) / limit
            if not entry.admitted:
                return 0
        return left

    def _queues_for(
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
        if _is_of_file(strategy):
            return {where: documents} if documents else {}
        return {(where, schema, document): [document] for document in documents}

    def is_in(self, queue: tuple[DocumentGate, Hashable]) -> bool:
        """Return whether this session was admitted from this queue; another thread may ask."""
        gate, key = queue
        return gate is self.gate and any(
            place.key == key and place.admitted for place in [*self._places]
        )

    def _leave_ungranted(self) -> None:
        self._leave([place for place in self._places if not place.granted])

    def _note_granted(self, request: LockRequest) -> None:
        """Keep the places of what was granted, until it is released."""
        ledger = ledger_of(self._session())
        asked = [place for place in self._places if not place.granted]
        unknown = [place for place in asked if not self._is_held(place)]
        if unknown:
            # A key asked for as "1" is in the ledger as 1.  Of several such places each is kept as long
            # as any of the locks, since it is not known which lock it belongs to.
            known = {document for place in asked for document in self._places[place]}
            granted = [document for document in ledger.held if document not in known]
            self._places.update(dict.fromkeys(unknown, granted))
        if asked:
            self._queues.note_granted([place for place in asked if self._is_held(place)])
            self._leave_ungranted()
        if self.gate.refuses_second_session and is_row_lock(request.lock) and ledger.places:
            self._hold(request.document)

    def _hold(self, document: str) -> None:
        """Note for the other sessions of this task and thread that this one holds a lock."""
        if not self.pools:
            self.document = document
        self.pools = frozenset(c.engine.pool for c in connections_of(self._session()).all())
        self.where, known = _where(), _here.get()
        if ref(self) not in known:
            # Another tuple: a context that was copied before does not see it.
            _here.set((*(one for one in known if (other := one()) and other.pools), ref(self)))

    def _is_held(self, place: QueueEntry) -> bool:
        return any(
            document in ledger_of(self._session()).places for document in self._places[place]
        )

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        if not ledger_of(self._session()).places:
            self.pools = frozenset()
        if self._places:
            self._leave([p for p in self._places if p.granted and not self._is_held(p)])

    def ended(self, *, committed: bool) -> None:
        self.pools = frozenset()  # also where an interruption came before
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
        if not self.gate.refuses_second_session or isinstance(bind, Connection):
            return
        for other in [one() for one in _here.get()]:
            if (
                other is not None
                and other is not self
                and other.gate is self.gate
                and bind.pool in other.pools
                and other.where == _where()
                and not isinstance(bind.pool, _NEVER_EXHAUSTED)
                and not any(c.engine is bind.engine for c in connections_of(self._session()).all())
            ):
                raise LockMisuse(
                    f"this task or thread holds {other.document} in another session, and now wants "
                    "a second connection of the same pool: if every connection in the pool belongs to a "
                    "task that waits for a second one, all of them hang. Pass the first session on, end its "
                    "transaction first, or use a separate engine; "
                    'DocumentGate(second_session="allow") permits it'
                )


def _is_of_file(strategy: LockStrategy) -> bool:
    return strategy.statements.locked is Locked.DATABASE


def _limit_of(strategy: LockStrategy, engine: Engine) -> float | None:
    """Return how long the server lets a lock wait that has no lock_timeout; ask it once."""
    if _LIMIT not in strategy.findings:
        with engine.connect() as connection:
            strategy.findings[_LIMIT] = strategy.waits.longest(connection)
    found: float | None = strategy.findings[_LIMIT]
    return found


# A StaticPool and a SingletonThreadPool give one connection to all who come, and a NullPool makes one
# for each.  A QueuePool of max_overflow=-1 or pool_size=0 has no limit, but no public attribute says
# so: it counts as one that has.
_NEVER_EXHAUSTED: Final = (NullPool, SingletonThreadPool, StaticPool)

# The sessions that have taken locks here.  A context variable, so that a thread of a pool, or a task
# that was started while a lock is held, does not count as the one that has taken it.
_here: ContextVar[tuple[ref[SessionQueue], ...]] = ContextVar("sa_doclock.here", default=())


def _where() -> object:
    """Return the task or thread that this is, to be compared."""
    with suppress(RuntimeError):  # no loop runs in this thread
        task = asyncio.current_task()
        if task is not None:
            return ref(task)
    return threading.get_ident()
