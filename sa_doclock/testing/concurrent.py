"""two_at_once() and async_two_at_once(): the double click, always at the worst moment."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, Final

from sqlalchemy import Connection, Engine
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError

from .listening import listening
from .lock_waits import COMMIT, LONG_STATEMENT
from .loops import AsyncConnections, LoopOfTest, LoopThread, check_functions
from .scheduling import ANYTHING, OWN_TRANSACTION, Outcome, Participant, Scheduler, Step, Waits

_WRITE: Final = re.compile(r"\s*(INSERT|UPDATE|DELETE|MERGE|REPLACE)\b", re.IGNORECASE)
_READ: Final = re.compile(r"\s*(SELECT|WITH|VALUES|TABLE)\b", re.IGNORECASE)

current_party: ContextVar[Participant | None] = ContextVar("sa_doclock.testing.party", default=None)
"""The function that runs in this thread or task, or that started it."""


def two_at_once(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    patience: float = 5.0,
    timeout: float = 60.0,
) -> tuple[Outcome, Outcome]:
    """Run two functions at the same time, so that both have read before either writes.

    A function that is about to write waits until the other one is about to write too, has ended, or
    waits for a lock.  Then the first continues, and the second after it.  So a program without
    locks loses an update each time, and a program with locks never does.  The server reports who
    waits for whom; on SQLite, the statements of the two show it.

    The functions may do anything that uses engines of this process: call an endpoint through the
    test client of a WSGI or ASGI application, use plain sessions, asynchronous ones, or none.  A
    statement belongs to a function if it runs in the function's thread or task, or in one that
    inherits its ``contextvars``, as with ``asyncio``, anyio and Starlette's test client.

    Example::

        def add_one():
            with Session() as session, session.locked(Order, 42) as order:
                order.total += 1

        first, second = two_at_once(add_one, add_one)

    :param first: a function or coroutine function without arguments; so is ``second``.  Functions
        run in a thread each, coroutines in a new event loop that both share.  Connections opened in
        this loop are closed with it.
    :param patience: seconds after which a function that neither writes, ends, nor waits in the
        database is assumed to wait for the other one in this process: for a mutex or a connection.
        A wait at a :class:`DocumentGate`, or between two tries of a batch, is detected at once.
    :param timeout: seconds after which it is an error that a function has not ended.
    :returns: the outcome of each.
    :raises TimeoutError: a function has not ended; it continues in its thread.
    :raises TypeError: an argument is not a function.
    """
    check_functions(first=first, second=second)
    return _run_both((first, second), patience, timeout, LoopThread())


async def async_two_at_once(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    patience: float = 5.0,
    timeout: float = 60.0,  # a parameter of two_at_once()
) -> tuple[Outcome, Outcome]:
    """Do :func:`two_at_once` in the test's event loop.

    Use it in a coroutine whose fixtures have pooled connections of this event loop.  Plain
    functions still run in a thread each.

    Example::

        async def add_one():
            async with AsyncSession() as session, session.locked(Order, 42) as order:
                order.total += 1

        first, second = await async_two_at_once(add_one, add_one)
    """
    check_functions(first=first, second=second)
    loop = LoopOfTest(asyncio.get_running_loop())
    return await asyncio.to_thread(_run_both, (first, second), patience, timeout, loop)


def _run_both(
    functions: tuple[Callable[[], Any], Callable[[], Any]],
    patience: float,
    timeout: float,
    loop: LoopThread | LoopOfTest,
) -> tuple[Outcome, Outcome]:
    turns = _WritesInTurn(patience, loop)
    try:
        with turns.listening():
            return turns.run(functions, turns.choose, timeout)
    finally:
        loop.stop(turns.connections.close_those_of)


class _WritesInTurn(Scheduler):
    """Lets two functions write in turn, after both have read, unless a lock stops one.

    A function waits before it writes, until the other function is about to write too, has ended, or
    waits for a lock.  The function that had fewer turns goes first.  A turn ends at the next write
    after another read.
    """

    current = current_party

    def __init__(self, patience: float, loop: LoopThread | LoopOfTest) -> None:
        self.connections = AsyncConnections(self._participant)
        self._lock_waits = _LockWaits(loop.run_function, patience)
        super().__init__(self._lock_waits, partial(self.connections.run, loop))
        self._have_read = {*self.participants}  # since the last turn of each, or without a turn

    def choose(self, ready: dict[int, Step], chosen: Sequence[Step]) -> int:
        self._lock_waits.refused.clear()
        turns = Counter(step.function for step in chosen)
        return min(ready, key=lambda number: (turns[number], number))

    @contextmanager
    def listening(self) -> Iterator[None]:
        own = listening(
            (Engine, "before_cursor_execute", self._before_statement),
            (Engine, "after_cursor_execute", self._after_statement),
            (Engine, "handle_error", self._on_error),
            (Engine, "commit", self._before_commit),
            (Engine, "rollback", self._after_statement),
        )
        with closing(self._lock_waits.servers), own, self.connections.listening():
            yield

    def _overdue(self, names: str) -> str:
        return f"the {names} has not ended after {self._timeout:g} s"

    # Listeners, in the thread or task of the function.

    def _participant(self) -> Participant | None:
        found = current_party.get()
        return found if found in self.participants.values() else None

    def _before_statement(
        self,
        connection: Connection,
        _cursor: object,
        statement: str,
        _parameters: object,
        context: Any,
        _executemany: bool,
    ) -> None:
        participant = self._participant()
        if participant is None:
            return
        number = participant.number
        begins_turn = number in self._have_read and _is_write(context, statement)
        step = Step(number, statement, "", OWN_TRANSACTION)
        step.accesses = ANYTHING if begins_turn else frozenset()
        self.wait_for_turn(participant, connection, step)
        if begins_turn:
            self._have_read.discard(number)
        if _READ.match(statement):
            self._have_read.add(number)

    def _before_commit(self, connection: Connection) -> None:
        self._before_statement(connection, None, COMMIT, None, None, False)

    def _after_statement(self, *_: object) -> None:
        participant = self._participant()
        if participant is not None:
            participant.note_ended_step()

    def _on_error(self, context: ExceptionContext) -> None:
        participant = self._participant()
        if participant is None:
            return
        self.connections.release(participant)
        participant.note_ended_step()
        if isinstance(context.sqlalchemy_exception, OperationalError):
            self._lock_waits.refused.add(participant.number)


class _LockWaits(Waits):
    """The waits of a function for any lock, whoever holds it.

    :ivar refused: the functions that were refused a lock since the last turn.
    """

    def __init__(self, run: Callable[[Callable[[], Any]], Any], patience: float) -> None:
        super().__init__(run, patience)
        self.refused: set[int] = set()

    def find(self, waiter: Participant, other: Participant) -> bool:
        return waiter.number in self.refused or super().find(waiter, other)

    def _waits_in_server(
        self, engine: Engine, waiter: Participant, _other: Participant, quiet: float
    ) -> bool:
        blockers = self._blockers(engine) or {}
        runs_long = waiter.statement is not None and quiet >= LONG_STATEMENT
        return runs_long or not self._ids(engine, waiter).isdisjoint(blockers)


def _is_write(context: Any, statement: str) -> bool:
    flags = ("isinsert", "isupdate", "isdelete")
    return any(getattr(context, flag, False) for flag in flags) or bool(_WRITE.match(statement))
