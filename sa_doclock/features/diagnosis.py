"""The holders of a lock that was not granted, asked of the server over a second connection.

If many sessions fail to get a lock at once, each would connect to ask the same: instead, they use
one connection at a time for each engine, and share the answers.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, Table

from ..core.documents import mapper_of, own_table, root_of
from ..core.statements import MAX_PARAMETERS
from ..core.transaction import LockCall, LockContext, SessionPart, connections_of
from ..dialects import (
    LockMonitoring,
    describe_connections,
    schema_translation,
    side_connection,
    strategy_for,
)
from ..errors import LockFailed, LockNotAvailable
from ..keys import Identity
from ..options import LockOptions, base_of
from ..wait_info import LockConnection, short_statement

_log = logging.getLogger("sa_doclock")
_LISTED = 3

Keys = Sequence[Identity]


class Diagnosis(SessionPart):
    """Adds the blockers to errors of ``LockingSession(diagnose=True)``."""

    def __init__(self, state: LockContext) -> None:
        self._session = state.session

    def settled(self, call: LockCall, error: LockFailed | None) -> None:
        """See :class:`SessionPart`: without an answer, the error stays as it is.

        This session no longer waits.
        """
        if not isinstance(error, LockNotAvailable) or error.entity is None:  # a named lock
            return
        lock = error.lock or LockOptions.ForUpdate
        try:
            blockers = self._find_blockers(error.entity, call.request.keys, lock, call.engine)
            text = blockers_text(blockers, error.hide_parameters)
        except Exception as failure:  # noqa: BLE001  # the error that there is matters more
            _log.debug("diagnose: the server did not tell who holds the lock: %r", failure)
            return
        if blockers:
            error.blockers = blockers
            error.add_details(f"; {text}")

    def _find_blockers(
        self, entity: type[Any], keys: Keys, lock: LockOptions, engine: Engine | None
    ) -> tuple[LockConnection, ...]:
        """Return the connections that block this lock.

        :param keys: of the requested rows; empty if unknown.
        :param engine: the engine whose server refused.
        """
        mapper = mapper_of(entity)
        bind = engine or self._session().get_bind(mapper)
        strategy = strategy_for(bind)
        monitoring = strategy.monitoring
        if monitoring is None:
            return ()
        ours = [
            connection
            for connection in connections_of(self._session()).all()
            if connection.engine is bind.engine
        ]
        own = {monitoring.connection_id(connection) for connection in ours}
        header = own_table(mapper)
        keys = _in_order_of(header, root_of(mapper).primary_key, keys)
        shared = base_of(lock) is LockOptions.SharedRead
        options = self._options(bind, ours)
        find = partial(_holders, monitoring, options, header, keys, shared=shared)
        queries: SharedQueries[Connection, Sequence[LockConnection]] = strategy.findings.setdefault(
            SharedQueries, SharedQueries(under_asyncio=bind.dialect.is_async)
        )
        query = (header, repr(keys), shared, repr(options))
        holders = queries.ask(query, find, lambda: side_connection(bind.engine, {})) or ()
        return tuple(holder for holder in holders if holder.connection_id not in own)

    def _options(self, bind: Engine | Connection, ours: Sequence[Connection]) -> Mapping[str, Any]:
        of_session = getattr(self._session(), "execution_options", {})  # SQLAlchemy 2.1
        of_connections = (connection.get_execution_options() for connection in reversed(ours))
        return schema_translation(bind.get_execution_options(), of_session, *of_connections)


def _holders(
    monitoring: LockMonitoring,
    options: Mapping[str, Any],
    header: Table,
    keys: Keys,
    connection: Connection,
    *,
    shared: bool,
) -> Sequence[LockConnection]:
    connection.execution_options(schema_translate_map=options.get("schema_translate_map"))
    try:
        found = monitoring.holders(connection, header, keys, shared=shared)
        described = describe_connections(monitoring, connection, found)
    finally:
        connection.rollback()  # the next query sees a later state of the server
    return [replace(described[number], certain=found[number]) for number in sorted(found)]


def _in_order_of(header: Table, columns: Sequence[Any], keys: Keys) -> Keys:
    """Return the keys in the order of the primary key; () if they have other columns, or are too many."""
    own = list(header.primary_key)
    if set(own) != set(columns) or len(keys) * len(own) > MAX_PARAMETERS:
        return ()
    places = [columns.index(column) for column in own]
    return [tuple(key[place] for place in places) for key in keys]


def blockers_text(blockers: Sequence[LockConnection], hide: bool) -> str:
    """Return the sentence about the blockers for the text of an error.

    :param hide: the engine hides parameters, which statements may contain.
    """
    held = "held by " if all(blocker.certain for blocker in blockers) else "perhaps held by "
    listed = [_described(blocker, hide) for blocker in blockers[:_LISTED]]
    if len(blockers) > _LISTED:
        listed.append(f"{len(blockers) - _LISTED} more")
    return held + "; ".join(listed)


def _described(connection: LockConnection, hide: bool) -> str:
    statement = None if hide else short_statement(connection)
    return str(connection) if statement is None else f"{connection}: {statement}"


C = TypeVar("C")
T = TypeVar("T")

PATIENCE: Final = 2.0
"""The seconds that a session waits for another's answer, or answers for others."""

SHARED_FOR: Final = 0.5
"""The seconds for which an answer is shared with sessions that ask the same."""


@dataclass(frozen=True)
class _Question(Generic[C, T]):
    query: Hashable
    execute: Callable[[C], T]
    answer: Future[T | None]


class SharedQueries(Generic[C, T]):
    """The queries of one engine, and their answers of the last half second.

    The first session that asks opens the connection, executes the queries of all that ask while it
    is open, and closes it.

    :param under_asyncio: the engine's sessions run in tasks, which must not block their thread.
    """

    def __init__(self, *, under_asyncio: bool) -> None:
        self._wait = _await_answer if under_asyncio else lambda answer: answer.result(PATIENCE)
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Begin again without questions, as in the child of a fork: the parent answers them."""
        self._changing = Lock()
        self._answers: dict[Hashable, Future[T | None]] = {}
        self._answered: deque[tuple[float, Hashable]] = deque()  # the oldest first
        self._waiting: deque[_Question[C, T]] = deque()
        self._is_connected = False  # also true while connecting and closing

    def ask(
        self,
        query: Hashable,
        execute: Callable[[C], T],
        connect: Callable[[], AbstractContextManager[C]],
    ) -> T | None:
        """Return the result of ``execute()``, here or in another session that asks the same.

        :param query: equal for sessions that ask the same.
        :param execute: a function of a connection, which it leaves ready for another query.
        :param connect: makes the connection.
        :raises TimeoutError: the other session did not get the answer in time.
        :raises Exception: an error of ``execute()`` or ``connect()``, if this session called it for
            its own query.
        :returns: None if the other session failed to ask.
        """
        own: _Question[C, T] | None = None
        with self._changing:
            now = time.monotonic()
            while self._answered and self._answered[0][0] <= now:
                del self._answers[self._answered.popleft()[1]]
            answer = self._answers.get(query)
            if answer is None:
                answer = self._answers[query] = Future()
                question = _Question(query, execute, answer)
                self._waiting.append(question)
                if not self._is_connected:
                    self._is_connected, own = True, question
        if own is not None:
            self._answer_all(own, connect)
        return answer.result() if answer.done() else self._wait(answer)

    def _answer_all(
        self, own: _Question[C, T], connect: Callable[[], AbstractContextManager[C]]
    ) -> None:
        """Run this caller's query, and the queries that arrive in the meantime."""
        until = time.monotonic() + PATIENCE
        own_error: Exception | None = None
        try:
            while self._goes_on(until):  # queries may arrive while the connection closes
                with connect() as connection:
                    while question := self._next(until):
                        error = self._answer(question, connection)
                        own_error = error if question is own else own_error
        finally:
            self._leave()
        if own_error is not None:
            raise own_error

    def _goes_on(self, until: float) -> bool:
        with self._changing:
            self._is_connected = bool(self._waiting) and time.monotonic() < until
            return self._is_connected

    def _next(self, until: float) -> _Question[C, T] | None:
        with self._changing:
            on_time = self._waiting and time.monotonic() < until
            return self._waiting.popleft() if on_time else None

    def _answer(self, question: _Question[C, T], connection: C) -> Exception | None:
        found: T | None = None
        try:
            found = question.execute(connection)
        except Exception as error:  # noqa: BLE001  # raised where it is the own query's
            return error
        finally:
            with self._changing:
                self._note_answer(question, found)
        return None

    def _leave(self) -> None:
        """Leave the waiting sessions without an answer: connecting failed, or takes too long."""
        with self._changing:
            self._is_connected = False
            while self._waiting:
                self._note_answer(self._waiting.popleft(), None)

    def _note_answer(self, question: _Question[C, T], found: T | None) -> None:
        self._answered.append((time.monotonic() + SHARED_FOR, question.query))
        question.answer.set_result(found)


def _await_answer(answer: Future[T | None]) -> T | None:
    import asyncio  # noqa: PLC0415  # only where there is a loop

    from sqlalchemy.util import await_only  # noqa: PLC0415  # needs greenlet

    async def wait() -> T | None:
        # Shielded: cancelling one task must not cancel the answer for others.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), PATIENCE)

    return await_only(wait())


# Global: after a fork, the child has no thread that answers.
# Threads: add() is atomic; the child of a fork, which has one thread, alone iterates over it.
_all: WeakSet[SharedQueries[Any, Any]] = WeakSet()


def _reset_all() -> None:
    for queries in _all:
        queries.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
