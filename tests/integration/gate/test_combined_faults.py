"""gate.run() while processes are killed and connections cut: every answered change is saved."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship, sessionmaker

from lab.running.processes import forked
from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    DocumentGate,
    LockingSession,
    LockOptions,
    UnlockedWrite,
    document,
)
from tests.integration.gate.combining_process import INSIDE, STAGES, Stage, add_line
from tests.reliability.faults.proxy import Link, Proxy
from tests.support.actors import PATIENCE
from tests.support.databases import Database
from tests.support.models import Line, Order
from tests.support.waits import wait_until

ROOT = Path(__file__).resolve().parents[3]
CALLERS, CALLS, FIRST = 12, 25, 1000
STORED = sa.select(Line.id).where(Line.id >= FIRST)
TOTAL = sa.select(Order.total).where(Order.id == 1)


def check(answered: set[int], session: LockingSession) -> None:
    """Assert that answered changes are saved, and each function wholly or not at all."""
    stored = set(session.scalars(STORED))
    assert answered <= stored
    assert session.scalars(TOTAL).one() == 30 + len(stored)


@pytest.mark.slow
def test_a_process_is_killed(documents: Database, session: LockingSession) -> None:
    arguments = documents.url, json.dumps(documents.connect_args)
    with forked("tests.integration.gate.combining_process", *arguments) as process:
        reported = [process.output.readline() for _ in range(60)]
        process.kill()
        reported += process.output.readlines()
    answered = {int(line) for line in reported if line.endswith("\n")}
    assert len(answered) >= 60
    check(answered, session)


@pytest.mark.parametrize("stage", STAGES)
def test_a_process_is_killed_at_each_stage(
    documents: Database, session: LockingSession, engine: sa.Engine, stage: str
) -> None:
    arguments = documents.url, json.dumps(documents.connect_args), stage
    reported: list[str] = []
    with forked("tests.integration.gate.combining_process", *arguments) as process:
        while (line := process.next_line()) != INSIDE:
            assert line
            reported.append(line)
        before = session.scalars(TOTAL).one()
        session.rollback()
        process.kill()
        reported += [line for line in process.output.readlines() if line.endswith("\n")]
    check({int(line) for line in reported}, session)
    assert session.scalars(TOTAL).one() == before  # nothing of its transaction, or all of it
    session.rollback()
    sessions = sessionmaker(engine, class_=LockingSession)
    assert DocumentGate().run(sessions, Order, 1, add_line(2**20)) == before + 1


@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("stage", STAGES)
def test_a_connection_is_lost_at_each_stage(
    documents: Database, proxy: Proxy, session: LockingSession, stage: str
) -> None:
    engine = sa.create_engine(
        proxy.url, connect_args=documents.connect_args, pool_pre_ping=True, pool_size=CALLERS
    )
    factory, gate = sessionmaker(engine, class_=LockingSession), DocumentGate()
    here = Stage(stage, engine, factory, lambda: proxy.harm(Link.reset, random.Random(1)))
    calls: list[Future[Any]] = []

    @sa.event.listens_for(factory, "after_begin")
    def let_others_come(*_: object) -> None:
        while len(calls) < 2:  # in one transaction with the first
            calls.append(threads.submit(gate.run, factory, Order, 1, add_line(FIRST + len(calls))))
            wait_until(lambda: gate.waiting == len(calls) + 1)

    with ThreadPoolExecutor(2) as threads:
        first: Future[Any] = Future()
        try:
            first.set_result(gate.run(factory, Order, 1, here.within(add_line(FIRST + 2))))
        except (DocLockError, DBAPIError) as error:
            first.set_exception(error)
        failed = [one.exception(PATIENCE) is not None for one in (first, *calls)]
    engine.dispose()
    assert not here.is_due
    assert failed == {"commit": [True] * 3, "flush": [False] * 3, "answer": [False] * 3}.get(
        stage, [True, False, False]
    )
    numbers = (FIRST + 2, FIRST, FIRST + 1)
    check({n for n, lost in zip(numbers, failed, strict=True) if not lost}, session)


@pytest.fixture
def proxy(documents: Database) -> Iterator[Proxy]:
    proxy = Proxy(documents.url)
    yield proxy
    proxy.close()


def _cut_answer(link: Link) -> None:
    link.cut = "back"


@pytest.mark.slow
@pytest.mark.not_databases("sqlite")
@pytest.mark.parametrize("harm", [Link.reset, _cut_answer])
def test_connections_are_cut_at_any_moment(
    documents: Database, proxy: Proxy, session: LockingSession, harm: Callable[[Link], object]
) -> None:
    engine = sa.create_engine(proxy.url, connect_args=documents.connect_args, pool_size=CALLERS)
    sessions, gate = sessionmaker(engine, class_=LockingSession), DocumentGate()
    numbers, chance = itertools.count(FIRST), random.Random(1)
    answers: list[tuple[int, int]] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def call() -> None:
        for number in itertools.islice(numbers, CALLS):
            try:
                answers.append((number, gate.run(sessions, Order, 1, add_line(number))))
            except (DocLockError, DBAPIError) as error:  # noqa: PERF203  # the next may succeed
                failures.append(error)

    def cut() -> None:
        due = 1
        while not over.wait(0.002):
            if len(answers) >= due:  # a caller that never gets an answer proves nothing
                proxy.harm(harm, chance)
                due = len(answers) + chance.randint(1, 8)

    with ThreadPoolExecutor(CALLERS + 1) as threads:
        cutting = threads.submit(cut)
        calls = [threads.submit(call) for _ in range(CALLERS)]
        for one in calls:
            one.result(120)
        over.set()
        cutting.result(10)
    engine.dispose()
    assert answers
    assert failures
    totals = [total for _, total in answers]
    assert len(totals) == len(set(totals))  # no two saw the same state
    check({number for number, _ in answers}, session)


# --------------------------------------------------------------------------------------------------
# A gate.run() function is a deadlock victim: its caller gets the error, the others are saved once.


@pytest.mark.not_databases("sqlite")  # a single lock of the whole file cannot deadlock
def test_a_function_that_locks_another_document_is_the_victim_of_a_deadlock(
    documents: Database, session: LockingSession, engine: sa.Engine
) -> None:
    gate, sessions = DocumentGate(), sessionmaker(engine, class_=LockingSession)
    before = session.scalars(sa.select(Order.total).where(Order.id == 1)).one()
    session.rollback()
    has_begun = threading.Event()

    def add(_session: Any, order: Order) -> None:
        order.total += 1

    def lock_another(function_session: Any, order: Order) -> None:
        order.total += 100
        has_begun.set()
        function_session.get_one_entity(Order, 2, LockOptions.ForUpdate)

    with sessions() as other, ThreadPoolExecutor(3) as threads:
        other.get_one_entity(Order, 2, LockOptions.ForUpdate).total += 1
        other.flush()  # InnoDB chooses the transaction that wrote less
        if documents.name == "postgresql":  # there the first to check is the victim
            other.execute(sa.text("SET LOCAL deadlock_timeout = '1min'"))
        victim = threads.submit(gate.run, sessions, Order, 1, lock_another)
        assert has_begun.wait(PATIENCE)
        behind = [threads.submit(gate.run, sessions, Order, 1, add) for _ in range(2)]
        other.get_one_entity(Order, 1, LockOptions.ForUpdate)
        other.commit()
        with pytest.raises(DeadlockDetected):
            victim.result(PATIENCE)
        for call in behind:
            call.result(PATIENCE)
    assert session.scalars(sa.select(Order.total).where(Order.id == 1)).one() == before + 2


# --------------------------------------------------------------------------------------------------
# The write guard in gate.run(): a function can write only the document it received.


class Base(DeclarativeBase):
    pass


@document(parts=("lines",), version=True)
class Bill(Base):
    __tablename__ = "bill"
    id: Mapped[int] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column()
    lines: Mapped[list[BillLine]] = relationship(cascade="all, delete-orphan")
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012


class BillLine(Base):
    __tablename__ = "bill_line"
    id: Mapped[int] = mapped_column(primary_key=True)
    bill_id: Mapped[int] = mapped_column(sa.ForeignKey("bill.id"))
    value: Mapped[int]


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[sessionmaker[LockingSession]]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'bills.db'}")
    Base.metadata.create_all(engine)
    made = sessionmaker(engine, class_=LockingSession)
    with made.begin() as session:
        session.add_all(Bill(id=n, lines=[BillLine(id=n, value=1)]) for n in (1, 2))
    yield made
    engine.dispose()


def test_a_part_of_another_document_is_refused_and_its_own_raises_the_version(
    sessions: sessionmaker[LockingSession],
) -> None:
    gate = DocumentGate()

    def change_other(session: LockingSession, _bill: Bill) -> None:
        session.get_one(BillLine, 2).value = 7

    def change_own(_session: LockingSession, bill: Bill) -> None:
        bill.lines[0].value += 1

    with pytest.raises(UnlockedWrite, match="Bill 2"):
        gate.run(sessions, Bill, 1, change_other)
    gate.run(sessions, Bill, 1, change_own)
    gate.run(sessions, Bill, 1, change_own)
    with sessions() as session:
        assert [session.get_one(BillLine, n).value for n in (1, 2)] == [3, 1]
        assert [session.get_one(Bill, n).version for n in (1, 2)] == [3, 1]
