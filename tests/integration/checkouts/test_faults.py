"""Workers that are stopped or killed, lost connections and wrong clocks, on real servers."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta
from typing import Any, cast

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from lab.running.processes import forked
from sa_doclock import (
    CheckedOut,
    CheckoutLost,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    lease_each,
)
from sa_doclock.dialects import strategy_for
from tests.integration.checkouts.conftest import Factory
from tests.integration.checkouts.models import CHECKOUTS, Order, expire
from tests.support.databases import Database
from tests.support.tracing import UNFINISHED, CtrlC
from tests.support.waits import wait_until

TODO = sa.select(Order).where(Order.total == 0)
WORKER = "tests.integration.checkouts.worker"


def is_free(factory: sessionmaker[LockingSession]) -> bool:
    with factory() as session:
        return session.checkout_of(Order, 1) is None


def is_unlocked(engine: sa.Engine) -> bool:
    """Return whether the server has ended the transaction of a killed worker."""
    with LockingSession(engine) as session:
        try:
            session.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)
        except LockNotAvailable:
            return False
        return True


def save_as(factory: sessionmaker[LockingSession], owner: str) -> int:
    """Process the first order, and return the epoch."""
    with next(lease_each(factory, TODO, owner=owner, limit=1)) as lease:
        assert lease.key == 1
        with lease.saving() as row:
            row.total = lease.checkout.epoch
        return lease.checkout.epoch


def total(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return int(connection.scalars(sa.select(Order.total).where(Order.id == 1)).one())


@pytest.mark.slow
def test_a_worker_that_is_stopped_past_its_lease_cannot_save(
    database: Database, engine: sa.Engine, factory: sessionmaker[LockingSession]
) -> None:
    with forked(WORKER, database.url, "stopped", "0.5") as worker:
        assert worker.next_line() == "working 1"
        worker.signal(signal.SIGSTOP)
        wait_until(lambda: is_free(factory))  # expired by the database's clock
        assert save_as(factory, "another") == 2
        worker.signal(signal.SIGCONT)
        worker.tell()
        assert worker.next_line().startswith("lost 1")
    assert total(engine) == 2


@pytest.mark.slow
def test_the_row_of_a_worker_that_is_killed_is_done_by_another(
    database: Database, engine: sa.Engine, factory: sessionmaker[LockingSession]
) -> None:
    with forked(WORKER, database.url, "killed", "0.5") as worker:
        assert worker.next_line() == "working 1"
        worker.kill()
        wait_until(lambda: is_free(factory))
        assert save_as(factory, "another") == 2
    assert total(engine) == 2


@pytest.mark.slow
def test_a_worker_that_is_killed_at_each_statement(
    database: Database, engine: sa.Engine, factory: sessionmaker[LockingSession]
) -> None:
    killed = 0
    for number in range(1, 60):
        with engine.begin() as connection:
            connection.execute(sa.update(Order).values(total=0))
        with forked(WORKER, database.url, f"killed at {number}", "600", str(number)) as worker:
            lines, status = worker.output.read(), worker.end()
        if status == 0:
            assert lines.splitlines()[-1] == "saved"
            break
        assert status == -signal.SIGKILL
        killed += 1
        wait_until(lambda: is_unlocked(engine))
        expire(engine)
        found = total(engine)
        if found:  # killed between its commit and its check-in
            with engine.connect() as connection:
                assert connection.scalars(sa.select(CHECKOUTS.c.epoch)).one() == found
        else:
            assert save_as(factory, "another") == total(engine)
    assert killed >= 9
    assert status == 0


@pytest.mark.slow
@pytest.mark.not_databases("sqlite")
def test_a_connection_that_is_lost_in_a_renewal(
    database: Database, engine: sa.Engine, factory: sessionmaker[LockingSession]
) -> None:
    kill = "SELECT pg_terminate_backend({})" if database.name == "postgresql" else "KILL {}"
    number = "pg_backend_pid()" if database.name == "postgresql" else "CONNECTION_ID()"
    killed: list[int] = []

    def end_connection(connection: sa.Connection, _c: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE co_checkouts") and not killed:
            killed.append(0)
            with closing(connection.connection.cursor()) as cursor:
                cursor.execute(f"SELECT {number}")
                killed[0] = int(cast("Any", cursor.fetchone())[0])
            with database.observer().connect() as observer:
                observer.exec_driver_sql(kill.format(killed[0]))

    with next(lease_each(factory, TODO, owner="one", lease=1.5, limit=1)) as lease:
        before = lease.checkout.until
        sa.event.listen(engine, "before_cursor_execute", end_connection)
        wait_until(lambda: lease.checkout.until > before)  # the heartbeat tried again
        assert killed
        assert not lease.lost
        with lease.saving() as row:
            row.total = 1
    assert total(engine) == 1


@pytest.mark.slow
def test_the_clock_of_the_client_decides_nothing(
    engine: sa.Engine, factory: sessionmaker[LockingSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategy_for(engine)
    assert strategy.clock is not None
    hour, now = 3600.0, time.time
    for wrong in (-hour, hour):
        monkeypatch.setattr(time, "time", lambda wrong=wrong: now() + wrong)
        with factory() as session:
            mine = session.take_over(Order, 1, f"{wrong}", lease=timedelta(minutes=1))
            session.commit()
            clock = session.scalar(sa.select(sa.literal_column(strategy.clock.now)))
            time_there = datetime.fromisoformat(str(clock)).replace(tzinfo=mine.since.tzinfo)
            assert abs(time_there - mine.since) < timedelta(seconds=30)
            assert mine.until - mine.since == timedelta(minutes=1)
            session.rollback()
            assert session.checkout_of(Order, 1) == mine
    expire(engine)
    assert is_free(factory)


WORKERS, TAKEOVERS = 4, 100


class Run:
    """Workers that take over each other's orders, and save with any check-out they ever had."""

    def __init__(self, factory: sessionmaker[LockingSession], how: str) -> None:
        self.factory, self.how = factory, how
        self.takeovers = self.saved = self.refused = self.stale = 0
        self.lock = threading.Lock()

    def work(self, name: str) -> None:
        while self.takeovers < TAKEOVERS:
            ident = 1 + self.takeovers % 3
            with self.factory() as session:
                mine = session.take_over(Order, ident, name)
                session.commit()
            with self.lock:
                self.takeovers += 1
            self.save(mine.ident, mine.epoch)

    def save(self, ident: int, epoch: int) -> None:
        asked: dict[str, Any] = {"checkout": epoch} if self.how == "fenced" else {}
        make = self.factory
        if not asked:  # like a program that reads the table, and then writes
            make = sessionmaker(self.factory.kw["bind"], class_=LockingSession)
        with make() as session:
            try:
                order = session.get_one_entity(Order, ident, LockOptions.ForUpdate, **asked)
            except CheckoutLost:
                with self.lock:
                    self.refused += 1
                return
            found = session.scalars(
                sa.select(CHECKOUTS.c.epoch).where(CHECKOUTS.c.ident == str(ident))
            ).one()
            order.total = max(order.total, epoch)
            session.commit()
            with self.lock:
                self.saved += 1
                self.stale += found != epoch

    def run(self) -> None:
        names = [f"worker {number}" for number in range(WORKERS)]
        threads = [threading.Thread(target=self.work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.mark.slow
@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.parametrize("how", ["fenced", "not fenced"])
def test_takeovers_under_load(factory: sessionmaker[LockingSession], how: str) -> None:
    run = Run(factory, how)
    run.run()
    assert run.takeovers >= TAKEOVERS
    assert run.saved
    if how == "fenced":
        assert run.stale == 0
        assert run.refused
    else:  # without the epoch the same run finds such writes
        assert run.stale


# --------------------------------------------------------------------------------------------------
# After an interrupted commit, rollback or close, the next transaction rereads its check-outs.

ForUpdate = LockOptions.ForUpdate
ENDS = [LockingSession.commit, LockingSession.rollback, LockingSession.close]


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_a_document_that_another_has_is_refused(
    factory: Factory, other: LockingSession, end: Callable[[LockingSession], None]
) -> None:
    ctrl_c = CtrlC(
        "sa_doclock.core.transaction.context",
        "sa_doclock.core.transaction.lock_transaction",
        "sa_doclock.features.checkouts",
    )
    interrupted, believed = True, list[object]()
    while interrupted:
        with factory() as session:
            session.get_one_entity(Order, 1, ForUpdate)
            interrupted = ctrl_c.during(lambda: end(session))  # called at once
            with suppress(*UNFINISHED):
                session.rollback()
            checkout = other.check_out(Order, 1, "ann")
            other.commit()
            with suppress(CheckedOut):
                session.get_one_entity(Order, 1, ForUpdate)
                believed.append(ctrl_c.raised)
            session.rollback()
        other.check_in(checkout)
        other.commit()
    assert not believed
