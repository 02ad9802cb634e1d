"""Queries about a server: over one connection at a time for each engine, with shared answers.

Where many sessions give a lock up at once, each would connect to ask the same.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

C = TypeVar("C")
T = TypeVar("T")

PATIENCE: Final = 2.0
"""The seconds that a session waits for the answer that another gets, or gets answers for others."""

SHARED_FOR: Final = 0.5
"""The seconds from an answer on in which who asks the same gets it too."""


@dataclass(frozen=True)
class _Question(Generic[C, T]):
    query: Hashable
    execute: Callable[[C], T]
    answer: Future[T | None]


class SharedQueries(Generic[C, T]):
    """The queries of one engine, and their answers of the last half second.

    The first session that asks opens the connection.  It executes the queries of all that ask
    while it is open, and closes it.

    :param under_asyncio: the sessions of the engine are tasks, which must not block their thread.
    """

    def __init__(self, *, under_asyncio: bool) -> None:
        self._wait = _await_answer if under_asyncio else lambda answer: answer.result(PATIENCE)
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Begin again without questions, as in the child of a fork, whose parent has them answered."""
        self._changing = Lock()
        self._answers: dict[Hashable, Future[T | None]] = {}
        self._answered: deque[tuple[float, Hashable]] = deque()  # the oldest first
        self._waiting: deque[_Question[C, T]] = deque()
        self._is_connected = False  # or about to connect, or to close

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
        :raises Exception: the errors of ``execute()`` and ``connect()``, where this session has
            called them for its own query.
        :returns: None where the other session has failed to ask.
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
        """Execute the own query, and those of others that wait by then."""
        until = time.monotonic() + PATIENCE
        own_error: Exception | None = None
        try:
            while self._goes_on(until):  # others may have come while the connection was closed
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
        """Leave the sessions that still wait without an answer: connecting has failed, or takes long."""
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
        # Shielded: a task that is cancelled leaves the answer to the others.
        return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(answer)), PATIENCE)

    return await_only(wait())


# Global, for a process that forks: a thread of the parent, which answers, is not there in the child.
# Threads: add() is atomic; only the child of a fork goes through it, which has one thread.
_all: WeakSet[SharedQueries[Any, Any]] = WeakSet()


def _reset_all() -> None:
    for queries in _all:
        queries.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
