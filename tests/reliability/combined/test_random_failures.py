"""gate.run() with 32 callers whose functions fail in every way: no call is lost or doubled."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import sessionmaker

from sa_doclock import AsyncLockingSession, DocLockError, DocumentGate, LockingSession, LockOptions
from tests.integration.asyncio.drivers import DRIVERS, connected, for_asyncio, in_a_loop, url_for
from tests.reliability.faults.proxy import Link, Proxy, proxy_to
from tests.support.databases import Database
from tests.support.models import Customer, Order

pytestmark = [
    pytest.mark.slow,
    # From two functions that insert the same key, in a pipeline that has not sent them yet.
    pytest.mark.filterwarnings("ignore:Identity map already had an identity"),
]

CALLERS, CALLS, FIRST = 32, 12, 1000
WAYS = ("saved",) * 8 + (
    *("raises first", "raises after a query", "raises after a change", "raises after a flush"),
    *("a flush fails", "its flush fails", "swallows", "swallows a flush"),
    *(
        "commits",
        "rolls back",
        "leaves a savepoint",
        "raises in a savepoint",
        "exits",
        "locks another",
    ),
)


class Wrong(Exception):
    """A function has failed."""


class Work:
    """The functions of all callers, and their outcomes.

    :ivar answered: the numbers of the answered calls, by key.
    :ivar doubtful: the keys of calls with an unknown outcome.
    :ivar reported: the keys of the on_commit() functions that ran.
    """

    def __init__(self, ways: Sequence[str], seed: int) -> None:
        self.answered: dict[int, int] = {}
        self.doubtful: set[int] = set()
        self.reported: list[int] = []
        self.failed: Counter[str] = Counter()
        self._keys, self._ways, self._chance = itertools.count(FIRST), ways, random.Random(seed)
        self._mutex = threading.Lock()

    def next(self) -> tuple[int, str]:
        """Return the key and the way of the next call."""
        with self._mutex:
            return next(self._keys), self._chance.choice(self._ways)

    def change(self, key: int, way: str, session: Any, order: Any) -> int:  # noqa: C901
        """Change the document, or fail; with asyncio, inside run_sync()."""
        if way == "raises first":
            raise Wrong
        if way == "raises after a query":
            session.scalar(sa.select(Order.total).where(Order.id == 2))
            raise Wrong
        order.total += 1
        number = int(order.total)
        session.add(Customer(id=key, name=str(number)))
        session.on_commit(lambda: self.reported.append(key))
        if way == "raises after a flush":
            session.flush()
        if way.startswith("raises"):
            if way == "raises in a savepoint":
                session.begin_nested()
                order.total += 1000
            raise Wrong
        if way == "a flush fails":
            session.add(Customer(id=1, name="again"))
        if way == "its flush fails":
            session.add(Customer(id=1, name="again"))
            session.flush()
        if way == "swallows":
            with suppress(IntegrityError):
                session.execute(sa.insert(Customer).values(id=1, name="again"))
        if way == "swallows a flush":
            session.add(Customer(id=1, name="again"))
            with suppress(IntegrityError):
                session.flush()
        if way == "leaves a savepoint":
            session.begin_nested()
        if way == "exits":
            raise SystemExit
        if way == "locks another":
            session.get_one_entity(Order, 2, LockOptions.ForUpdate).total += 1
        return number

    def note(self, key: int, way: str, outcome: int | BaseException) -> None:
        """Record a caller's error."""
        if isinstance(outcome, int):
            self.answered[key] = outcome
        elif getattr(outcome, "connection_invalidated", False):
            self.doubtful.add(key)
        self.failed[f"{way}: {type(outcome).__name__}"] += 1

    def check(self, engine: sa.Engine) -> None:
        """Assert that every answered call is saved exactly once, and nothing else is."""
        with engine.connect() as connection:
            rows = connection.execute(
                sa.select(Customer.id, Customer.name).where(Customer.id >= FIRST)
            )
            stored = {key: int(name) for key, name in rows}
            total = connection.scalars(sa.select(Order.total).where(Order.id == 1)).one()
        assert self.answered.items() <= stored.items(), self.failed
        assert stored.keys() <= self.answered.keys() | self.doubtful, self.failed
        assert sorted(stored.values()) == [*range(31, total + 1)], self.failed
        assert sorted(self.reported) == sorted(self.answered), self.failed
        assert len(self.answered) > CALLERS, self.failed


def call_in_threads(work: Work, gate: DocumentGate, sessions: Any, number: int = CALLERS) -> None:
    def call() -> None:
        for _ in range(CALLS):
            key, way = work.next()

            def function(session: Any, order: Any, key: int = key, way: str = way) -> int:
                number = work.change(key, way, session, order)
                if way == "commits":
                    session.commit()
                if way == "rolls back":
                    session.rollback()
                return number

            try:
                work.note(key, way, gate.run(sessions, Order, 1, function))
            except (Wrong, SystemExit, SQLAlchemyError, DocLockError) as error:
                work.note(key, way, error)

    with ThreadPoolExecutor(number) as threads:
        for one in [threads.submit(call) for _ in range(number)]:
            one.result(300)


async def call_in_tasks(work: Work, gate: DocumentGate, sessions: Any) -> None:
    async def call() -> None:
        for _ in range(CALLS):
            key, way = work.next()

            async def function(session: Any, order: Any, key: int = key, way: str = way) -> int:
                number = int(
                    await session.run_sync(lambda inner: work.change(key, way, inner, order))
                )
                if way == "commits":
                    await session.commit()
                if way == "rolls back":
                    await session.rollback()
                return number

            try:
                work.note(key, way, await gate.async_run(sessions, Order, 1, function))
            except (Wrong, SQLAlchemyError, DocLockError) as error:
                work.note(key, way, error)

    await asyncio.gather(*(call() for _ in range(CALLERS)))


@contextmanager
def rivals(engine: sa.Engine) -> Iterator[None]:
    """Make others lock the two documents in the opposite order, so that some caller becomes a deadlock's victim."""
    over = threading.Event()

    def lock_both() -> None:
        while not over.wait(0.02):
            with suppress(SQLAlchemyError, DocLockError), LockingSession(engine) as session:
                for number in (2, 1):
                    session.get_one_entity(Order, number, LockOptions.ForUpdate)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(lock_both)
        try:
            yield
        finally:
            over.set()
        running.result(60)


@contextmanager
def harmed(proxy: Proxy, work: Work) -> Iterator[None]:
    """Cut a connection after every few answers."""
    over, chance = threading.Event(), random.Random(2)

    def cut() -> None:
        due = 1
        while not over.wait(0.002):
            if len(work.answered) >= due:
                proxy.harm(Link.reset if chance.random() < 0.5 else _cut_answer, chance)
                due = len(work.answered) + chance.randint(5, 20)

    with ThreadPoolExecutor(1) as thread:
        cutting = thread.submit(cut)
        try:
            yield
        finally:
            over.set()
        cutting.result(60)


def _cut_answer(link: Link) -> None:
    link.cut = "back"


@pytest.fixture(params=[False, True], ids=["simple", "pipelined"])
def options(request: pytest.FixtureRequest, documents: Database) -> dict[str, Any]:
    if request.param and documents.name != "postgresql":
        pytest.skip("a pipeline is PostgreSQL's")
    return {"pipeline": request.param}


def test_functions_of_threads_fail_in_every_way(engine: sa.Engine, options: dict[str, Any]) -> None:
    work = Work(WAYS, seed=1)
    sessions = sessionmaker(engine, class_=LockingSession, **options)
    call_in_threads(work, DocumentGate(), sessions)
    work.check(engine)


@in_a_loop
async def test_functions_of_tasks_fail_in_every_way(documents: Database, engine: sa.Engine) -> None:
    work = Work([way for way in WAYS if way != "exits"], seed=2)
    async with opened(documents) as sessions:
        await call_in_tasks(work, DocumentGate(), sessions)
    work.check(engine)


@asynccontextmanager
async def opened(database: Database) -> AsyncIterator[async_sessionmaker[AsyncLockingSession]]:
    async with connected(url_for(database, DRIVERS[database.name][0]), pool_size=5) as engine:
        yield async_sessionmaker(engine, class_=AsyncLockingSession)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_while_others_lock_in_the_other_order(engine: sa.Engine) -> None:
    work = Work((*("saved",) * 12, "locks another", "raises after a change"), seed=3)
    with rivals(engine):
        call_in_threads(work, DocumentGate(), sessionmaker(engine, class_=LockingSession))
    work.check(engine)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_while_connections_are_cut(documents: Database, options: dict[str, Any]) -> None:
    work = Work(WAYS, seed=4)
    with proxy_to(documents.url) as proxy:
        through = sa.create_engine(
            proxy.url, connect_args=documents.connect_args, pool_size=CALLERS
        )
        with harmed(proxy, work):
            call_in_threads(
                work, DocumentGate(), sessionmaker(through, class_=LockingSession, **options)
            )
        through.dispose()
    with documents.engine().connect() as connection:
        work.check(connection.engine)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@in_a_loop
async def test_while_connections_of_tasks_are_cut(documents: Database) -> None:
    work = Work([way for way in WAYS if way != "exits"], seed=5)
    with proxy_to(documents.url) as proxy, harmed(proxy, work):
        async with connected(for_asyncio(proxy.url, DRIVERS[documents.name][0])) as engine:
            sessions = async_sessionmaker(engine, class_=AsyncLockingSession)
            await call_in_tasks(work, DocumentGate(), sessions)
    with documents.engine().connect() as connection:
        work.check(connection.engine)
