"""A process whose callers change one document by gate.run(), each several times:
``python -m tests.reliability.combined.callers URL CONNECT_ARGS PROCESS KIND``, the arguments as JSON.

A line on standard input starts it; it reports each answer on standard output.  Its callers are
threads or tasks.  The kind ``victim`` has threads, and stays in the middle of a transaction.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from sa_doclock import AsyncLockingSession, DocumentGate, LockingSession
from sa_doclock.process_waits import wait_observer
from tests.reliability.combined.processes import Answer
from tests.support.models import Customer, Order

CALLERS, CALLS, COMBINED = 8, 10, 5
KEYS_OF_A_PROCESS = 1000

Tell = Callable[[Answer], object]


class Callers:
    """The callers of one process.

    :ivar committed: the numbers, in the order of the on_commit() calls.
    """

    def __init__(self, process: int, tell: Tell) -> None:
        self.process, self.tell = process, tell
        self.gate = DocumentGate(combine=COMBINED)
        self.committed: list[int] = []
        self.keys = itertools.count(process * KEYS_OF_A_PROCESS)
        self._arrivals = itertools.count()

    def raise_counter(self, key: int, session: Any, order: Any) -> int:
        """Increment the counter, and insert a row with its number."""
        order.total += 1
        number = int(order.total)
        session.add(Customer(id=key, name=str(number)))
        session.on_commit(lambda: self.committed.append(number))
        return number

    def arrive(self) -> tuple[int, float]:
        """Return the place and the time of a call that begins now."""
        return next(self._arrivals), time.monotonic()

    def note(self, key: int, arrived: tuple[int, float], number: int) -> None:
        """Report an answer that arrived now."""
        self.tell(Answer(self.process, key, *arrived, time.monotonic(), number))


class Threads(Callers):
    """Callers in threads, which enter the queue in the order of their places.

    :param options: of the sessions.
    """

    def __init__(self, process: int, tell: Tell, engine: sa.Engine, **options: Any) -> None:
        super().__init__(process, tell)
        self.sessions = sessionmaker(engine, class_=LockingSession, **options)
        sa.event.listen(self.sessions, "after_transaction_create", self.has_begun)
        self._entering = threading.Lock()
        self._here = threading.local()

    def has_begun(self, session: Session, transaction: SessionTransaction) -> None:
        """Note that this caller is in the queue: the first one in it begins a transaction."""
        self._has_entered()

    def _waits(self) -> AbstractContextManager[None]:
        self._has_entered()
        return nullcontext()

    def _has_entered(self) -> None:
        if self._here.enters:
            self._here.enters = False
            self._entering.release()

    def call(self) -> None:
        key = next(self.keys)
        wait_observer.set(self._waits)
        self._entering.acquire()  # until it enters the queue
        self._here.enters = True
        arrived = self.arrive()
        try:
            number = self.gate.run(
                self.sessions, Order, 1, lambda *given: self.raise_counter(key, *given)
            )
        finally:
            self._has_entered()
        self.note(key, arrived, number)

    def run(self, number: int = CALLERS, calls: int = CALLS) -> None:
        """Run this number of callers, with this number of calls each."""

        def work() -> None:
            for _ in range(calls):
                self.call()

        with ThreadPoolExecutor(number) as threads:
            for one in [threads.submit(work) for _ in range(number)]:
                one.result()


class Victim(Threads):
    """Stays in the third function of a transaction, after flushing the first two."""

    def __init__(self, process: int, tell: Tell, engine: sa.Engine) -> None:
        super().__init__(process, tell, engine)
        self._transaction: list[int] = []

    def has_begun(self, session: Session, transaction: SessionTransaction) -> None:
        """Begin a new list with each transaction."""
        super().has_begun(session, transaction)
        if transaction.parent is None:  # not of a flush
            self._transaction = []

    def raise_counter(self, key: int, session: Any, order: Any) -> int:
        """Increment the counter; stay once some calls are answered and this transaction already has two."""
        number = super().raise_counter(key, session, order)
        self._transaction.append(key)
        if len(self._transaction) == 3 and len(self.committed) >= 2 * COMBINED:
            session.flush()
            say({"inside": self._transaction})
            threading.Event().wait()  # until the kill
        return number


class Tasks(Callers):
    """Callers in tasks of one event loop: they enter the queue as they call."""

    def __init__(self, process: int, tell: Tell, url: str, connect_args: Any) -> None:
        super().__init__(process, tell)
        self._url, self._connect_args = url, connect_args

    def run(self) -> None:
        """Run all callers."""
        asyncio.run(self._run_all())

    async def _run_all(self) -> None:
        engine = create_async_engine(self._url, connect_args=self._connect_args)
        sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
        await asyncio.gather(*(self._work(sessions) for _ in range(CALLERS)))
        await engine.dispose()

    async def _work(self, sessions: async_sessionmaker[AsyncLockingSession]) -> None:
        for _ in range(CALLS):
            key = next(self.keys)

            async def function(session: AsyncLockingSession, order: Any, key: int = key) -> int:
                number = self.raise_counter(key, session, order)
                await session.flush()
                return number

            arrived = self.arrive()
            self.note(key, arrived, await self.gate.async_run(sessions, Order, 1, function))


_output = threading.Lock()


def say(what: object) -> None:
    with _output:
        print(json.dumps(what), flush=True)


def main(url: str, connect_args: str, process: str, kind: str) -> None:
    arguments = json.loads(connect_args)
    callers: Threads | Tasks
    if kind == "tasks":
        callers = Tasks(int(process), say, url, arguments)
    else:
        engine = sa.create_engine(url, connect_args=arguments)
        callers = (Victim if kind == "victim" else Threads)(int(process), say, engine)
    say("ready")
    sys.stdin.readline()
    callers.run()
    say({"committed": callers.committed})
