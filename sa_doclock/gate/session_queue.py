"""One session at the gate: when it queues, for how long, and when it gives its places up."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Mapper, Session

from ..dialects import strategy_for
from ..dialects.base import LockStrategy
from ..documents import document_key, mapper_of, own_table
from ..errors import LockFailed, LockMisuse, LockNotAvailable
from ..options import LockOptions, base_of, is_row_lock, may_queue
from ..session_ref import weakly
from ..transaction import Ledger, TransactionConnections
from .queue import DocumentGate, QueueEntry
from .second_session import Holder, can_be_exhausted

T = TypeVar("T")
Attempt = Callable[[LockOptions, float | None], T]

Refuse = Callable[[type[LockFailed], str], LockFailed]
"""Makes the error of a lock that was not granted, on the database of this name."""

_STEPS = 10  # of what is left for the server: it is a part of the statement's text on some
_SCHEMAS = "schema_translate_map"
_limits: WeakKeyDictionary[LockStrategy, float | None] = WeakKeyDictionary()


class Wanted(NamedTuple):
    """What one call asks for."""

    entity: type[Any] | None  # None: a named lock
    ident: Any
    keys: Sequence[tuple[Any, ...]]  # of the rows, where they are known
    bind: Engine | Connection | None = None  # of a named lock

    def __str__(self) -> str:
        if self.entity is None:
            return f"named lock {self.ident!r}"
        return f"{self.entity.__name__} " + ("rows" if self.ident is None else f"{self.ident}")


class _Line(NamedTuple):
    """Where one call stands."""

    engine: Engine
    strategy: LockStrategy
    shared: bool
    keys: Mapping[Hashable, Sequence[Hashable]]


class SessionQueue:
    """The way of one session through a gate."""

    def __init__(
        self,
        gate: DocumentGate,
        session: Session,
        participants: TransactionConnections,
        ledger: Ledger,
    ) -> None:
        self._places: dict[QueueEntry, Sequence[Hashable]] = {}  # with what is in the ledger then
        self._holder = Holder(gate)
        if not isinstance(gate, DocumentGate):
            raise TypeError(f"gate must be a DocumentGate, not {gate!r}")
        self._gate = gate
        self._session = weakly(session)
        self._participants = participants
        self._ledger = ledger
        self.under_asyncio = False
        ledger.forgotten = self._forget

    def __del__(self) -> None:
        # A session that nobody has closed ends no transaction.
        if self._places:
            self._gate.leave(self._places)
        self._holder.holds_nothing()

    def lead(self, attempt: Attempt[T], wanted: Wanted, refuse: Refuse) -> Attempt[T]:
        """The attempt, made when it is this session's turn."""

        def led(lock: LockOptions, seconds: float | None) -> T:
            try:
                left = self._wait(wanted, lock, seconds, refuse)
                result = attempt(lock, left)
            except BaseException:
                self._leave([place for place in self._places if not place.granted])
                raise
            self._note_granted(wanted, lock)
            return result

        return led

    def refuse_beside(self, bind: Engine | Connection) -> None:
        """:raises LockMisuse: this task holds a lock in another session, and a connection."""
        if not self._gate.refuses_second_session or isinstance(bind, Connection):
            return
        for other in self._holder.beside():
            if (
                other.gate is self._gate
                and bind.pool in other.pools
                and can_be_exhausted(bind.pool)
                and not self._connected(bind)
            ):
                raise LockMisuse(
                    f"this task or thread holds {other.document} in another session, and now wants "
                    "a second connection of the same pool: when all of a pool's connections are "
                    "held by those who want a second one, none of them goes on.  Pass the first "
                    "session on, or end its transaction before, or make an engine of its own for "
                    'what is done beside; DocumentGate(second_session="allow") lets it'
                )

    def _connected(self, engine: Engine) -> bool:
        return any(one.engine is engine for one in self._participants.connections())

    def _wait(
        self, wanted: Wanted, lock: LockOptions, seconds: float | None, refuse: Refuse
    ) -> float | None:
        """Queue, where that is to be done; return what is left of the time."""
        tries = LockOptions.NoWait in lock and seconds is not None  # a batch, that gives way
        if not self._session().is_active or not (tries or may_queue(lock)):
            return seconds
        line = self._line(wanted, lock)
        if line is None or (not tries and self._participants.connections()):
            return seconds
        if not tries:
            return self._queue(line, seconds, refuse)
        if any(self._gate.is_busy(key, shared=line.shared) for key in line.keys):
            raise refuse(LockNotAvailable, line.strategy.name)
        return seconds

    def _line(self, wanted: Wanted, lock: LockOptions) -> _Line | None:
        """Where to stand for this lock; None where it waits for nobody."""
        mapper = None if wanted.entity is None else mapper_of(wanted.entity)
        bind = wanted.bind or self._session().get_bind(mapper)
        if isinstance(bind, Connection):
            return None
        strategy = strategy_for(bind)
        strategy.check_support(lock)
        self.under_asyncio = bind.dialect.is_async
        if base_of(lock) not in strategy.queued:
            return None
        shared = base_of(lock) is LockOptions.SharedRead
        return _Line(bind, strategy, shared, self._keys(wanted, mapper, bind, strategy))

    def _queue(self, line: _Line, seconds: float | None, refuse: Refuse) -> float | None:
        limit = _limit_of(line.strategy, line.engine) if seconds is None else seconds
        if limit == 0:  # as the server is configured
            return seconds
        started = time.monotonic()
        queued = False
        for key, documents in line.keys.items():
            place = self._gate.enter(
                key,
                shared=line.shared,
                next_may_follow=not line.strategy.locks_database,
                seconds=None if limit is None else max(limit - time.monotonic() + started, 0.0),
                under_asyncio=self.under_asyncio,
            )
            if place is None:
                raise refuse(LockNotAvailable, line.strategy.name)
            self._places[place] = documents
            queued = queued or place.queued
        if seconds is None or not queued:
            return seconds
        left = seconds - (time.monotonic() - started)
        if left <= 0:
            raise refuse(LockNotAvailable, line.strategy.name)
        return math.ceil(left / seconds * _STEPS) * seconds / _STEPS

    def _keys(
        self, wanted: Wanted, mapper: Mapper[Any] | None, engine: Engine, strategy: LockStrategy
    ) -> Mapping[Hashable, Sequence[Hashable]]:
        """Where to stand, in this order, and what is in the ledger when it is granted."""
        where = engine.dialect  # the same for an engine and its execution_options()
        documents: list[Hashable]
        if mapper is None:
            documents, schema = [(engine, wanted.ident)], None
        else:
            documents = [document_key(mapper, key) for key in wanted.keys]
            of_session = getattr(self._session(), "execution_options", {})  # of SQLAlchemy 2.1
            options = {**engine.get_execution_options(), **of_session}
            schema = own_table(mapper).schema
            schema = (options.get(_SCHEMAS) or {}).get(schema, schema)
        if strategy.locks_database:
            return {where: documents} if documents else {}
        return {(where, schema, document): [document] for document in documents}

    def _note_granted(self, wanted: Wanted, lock: LockOptions) -> None:
        asked = [place for place in self._places if not place.granted]
        if asked:
            self._note_spelling(asked)
            self._gate.note_granted([place for place in asked if self._holds(place)])
            self._leave([place for place in asked if not place.granted])
        if self._gate.refuses_second_session and is_row_lock(lock) and not self._ledger.empty:
            connections = self._participants.connections()
            self._holder.holds(str(wanted), [one.engine.pool for one in connections])

    def _note_spelling(self, asked: Sequence[QueueEntry]) -> None:
        """A key is in the ledger as the row has it: what was asked for as "1" as 1.

        Whose of several such places it is nobody knows: each is kept as long as any of the locks.
        """
        unknown = [place for place in asked if not self._holds(place)]
        if unknown:
            known = {document for place in asked for document in self._places[place]}
            granted = [document for document in self._ledger.held if document not in known]
            self._places.update(dict.fromkeys(unknown, granted))

    def _holds(self, place: QueueEntry) -> bool:
        return any(self._ledger.has(document) for document in self._places[place])

    def _forget(self) -> None:
        """Locks were given up: so are the places of them."""
        if self._ledger.empty:
            self._holder.holds_nothing()
        if self._places:
            self._leave([p for p in self._places if p.granted and not self._holds(p)])

    def _leave(self, places: Sequence[QueueEntry]) -> None:
        for place in places:
            del self._places[place]
        if places:
            self._gate.leave(places)


def _limit_of(strategy: LockStrategy, engine: Engine) -> float | None:
    """How long the server lets a lock wait that has no lock_timeout; asked once."""
    try:
        return _limits[strategy]
    except KeyError:
        with engine.connect() as connection:
            found = _limits[strategy] = strategy.longest_wait(connection)
        return found
