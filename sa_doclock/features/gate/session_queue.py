"""The queue of one session at a gate: when and for how long it waits, and when it leaves."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Engine

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
from ...dialects import check_support, may_wait, strategy_for, translated_schema
from ...dialects.base import Locked, LockStrategy
from ...errors import LockNotAvailable
from ...events import ReleasedLock
from ...options import LockOptions, base_of, may_queue
from ...process_waits import observed_wait
from .document_gate import DocumentGate, queues_of
from .queue import QueueEntry

_STEPS = 10  # rounds the remaining time: some servers take it in the text of the statement

Places = dict[QueueEntry, Sequence[Hashable]]
"""The entries of a session in the queues, each with the ledger's names of its granted locks."""

_LIMIT = "sa_doclock.features.gate.longest_wait"


class SessionQueue(SessionPart):
    """The places of one session at a gate.

    :ivar waits_in: the gate and the key of the queue in which the session waits now, or None.
    """

    def __init__(self, gate: DocumentGate, state: LockContext) -> None:
        self._places: Places = {}
        self.waits_in: tuple[DocumentGate, Hashable] | None = None
        if not isinstance(gate, DocumentGate):
            raise TypeError(f"gate must be a DocumentGate, not {gate!r}")
        self.gate, self._queues = gate, queues_of(gate)
        self._session = state.session

    def __del__(self) -> None:
        # A session that was never closed ends no transaction.
        if self._places:
            self._queues.leave(self._places)

    def around_take(self, take: Take) -> Take:
        def take_in_turn(call: LockCall, request: LockRequest, target: Any) -> Any:
            try:
                result = take(call, self._enter(request, call), target)
                self._note_granted()
            except BaseException:
                self._leave_ungranted()
                raise
            return result

        return take_in_turn

    def _enter(self, request: LockRequest, call: LockCall) -> LockRequest:
        database = self._database(request)
        if database is None:
            return request
        engine, strategy = database
        queues = self._queues_for(request, engine, strategy)
        shared = base_of(request.lock) is LockOptions.SharedRead
        if LockOptions.NoWait in request.lock:  # a try of a batch
            if any(self._queues.is_busy(key, shared=shared) for key in queues):
                raise call.refused(LockNotAvailable, strategy.name)
            return request
        if connections_of(self._session()).all():  # it is connected already
            return request
        limit = _limit_of(strategy, engine) if request.seconds is None else request.seconds
        follows = self.gate.next_waits_at_server and not _is_of_file(strategy)
        places = {QueueEntry(key, shared, follows): queues[key] for key in queues if limit != 0}
        left = self._wait(places, limit, under_asyncio=engine.dialect.is_async)
        if left <= 0:
            raise call.refused(LockNotAvailable, strategy.name)
        return _shortened(request, left)

    def _database(self, request: LockRequest) -> tuple[Engine, LockStrategy] | None:
        session, lock = self._session(), request.lock
        tries = LockOptions.NoWait in lock and request.seconds is not None  # of a batch
        # Without a key, the document is unknown before the statement runs.
        if not (session.is_active and request.by_key and (tries or may_queue(lock))):
            return None
        engine = session.get_bind(**request.bind_arguments)
        if isinstance(engine, Connection):  # the session's own Connection
            return None
        strategy = strategy_for(engine)
        check_support(strategy, lock)
        return (engine, strategy) if may_wait(strategy, lock) else None

    def _wait(self, places: Places, limit: float | None, *, under_asyncio: bool) -> float:
        """Wait in all queues; return the remaining share of the limit, 0 if the time ran out."""
        started, left = time.monotonic(), 1.0
        for entry, documents in places.items():
            self._places[entry] = documents  # first: an interruption leaves the queue too
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
        """Return the queues, in this order, with the ledger's names of the locks."""
        where = engine.dialect  # the same for an engine and its execution_options()
        mapper, schema = request.mapper, None
        documents: list[Hashable] = [(engine, request.ident)]
        if mapper is not None:
            documents = [document_key(mapper, key) for key in request.keys]
            own = getattr(self._session(), "execution_options", {})  # SQLAlchemy 2.1
            schema = translated_schema(own_table(mapper), engine.get_execution_options(), own)
        if _is_of_file(strategy):
            return {where: documents} if documents else {}
        return {(where, schema, document): [document] for document in documents}

    def is_in(self, queue: tuple[DocumentGate, Hashable]) -> bool:
        """Return whether this session was admitted from this queue; another thread may call it."""
        gate, key = queue
        return gate is self.gate and any(p.key == key and p.admitted for p in [*self._places])

    def _leave_ungranted(self) -> None:
        self._leave([place for place in self._places if not place.granted])

    def _note_granted(self) -> None:
        """Keep the places of granted locks until they are released; leave the others."""
        asked = [place for place in self._places if not place.granted]
        if asked:
            self._find_in_ledger([place for place in asked if not self._is_held(place)])
            self._queues.note_granted([place for place in asked if self._is_held(place)])
            self._leave_ungranted()

    def _find_in_ledger(self, unknown: Sequence[QueueEntry]) -> None:
        # A key given as "1" is in the ledger as 1.  Which lock belongs to which such place is
        # unknown, so each is kept as long as any of the locks.
        if unknown:
            known = {document for documents in self._places.values() for document in documents}
            held = ledger_of(self._session()).held
            granted = [document for document in held if document not in known]
            self._places.update(dict.fromkeys(unknown, granted))

    def _is_held(self, place: QueueEntry) -> bool:
        held = ledger_of(self._session()).places
        return any(document in held for document in self._places[place])

    def released(self, released: Sequence[ReleasedLock], outcome: str) -> None:
        if self._places:
            self._leave([p for p in self._places if p.granted and not self._is_held(p)])

    def ended(self, *, committed: bool) -> None:
        self._leave([*self._places])

    def _leave(self, places: Sequence[QueueEntry]) -> None:
        if places:
            self._queues.leave(places)
        for place in places:  # last: an interruption before it changes nothing
            del self._places[place]


def _shortened(request: LockRequest, left: float) -> LockRequest:
    if request.seconds is None or left == 1:
        return request
    return request._replace(seconds=math.ceil(left * _STEPS) * request.seconds / _STEPS)


def _is_of_file(strategy: LockStrategy) -> bool:
    return strategy.statements.locked is Locked.DATABASE


def _limit_of(strategy: LockStrategy, engine: Engine) -> float | None:
    """Return the server's own limit for a lock without lock_timeout; asked once per engine."""
    if _LIMIT not in strategy.findings:
        with engine.connect() as connection:
            strategy.findings[_LIMIT] = strategy.waits.longest(connection)
    return strategy.findings[_LIMIT]  # type: ignore[no-any-return]
