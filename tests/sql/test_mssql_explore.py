"""SQL Server: explore() finds the orders of its statements; the server is scripted, and locks nothing."""

from __future__ import annotations

from functools import partial

from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from sa_doclock import LockingSession
from sa_doclock.testing import explore
from tests.sql.models import Depot, Order
from tests.sql.script import Script


def add_ten(factory: sessionmaker[Session]) -> None:
    with factory() as session:
        session.get_one(Order, 1).total += 10
        session.commit()


def add_ten_under_lock(factory: sessionmaker[LockingSession], entity: type[Order | Depot]) -> None:
    with factory() as session, session.locked(entity, 1) as order:
        order.total += 10


def nothing() -> None:
    pass


def updates_of(script: Script) -> int:
    return sum(sql.startswith("UPDATE") for sql in script.sent)


def test_all_orders_of_reads_that_take_locks(scripted: tuple[Engine, Script]) -> None:
    engine, script = scripted
    add = partial(add_ten, sessionmaker(engine))
    result = explore(add, add, before=nothing, invariant=lambda: True)
    assert result.complete, result.incomplete_because
    every = explore(add, add, before=nothing, invariant=lambda: True, reduce=False)
    assert 1 < result.runs < every.runs
    assert updates_of(script) > 2 * result.runs


def test_the_hints_of_locks_on_other_tables_leave_one_order(
    scripted: tuple[Engine, Script],
) -> None:
    engine, script = scripted
    factory = sessionmaker(engine, class_=LockingSession)
    first, second = (partial(add_ten_under_lock, factory, one) for one in (Order, Depot))
    apart = explore(first, second, before=nothing, invariant=lambda: True)
    same = explore(first, first, before=nothing, invariant=lambda: True)
    assert (apart.runs, apart.complete) == (1, True)
    assert same.runs > 1
    assert any("UPDLOCK" in sql for sql in script.selects)


def test_the_timeline_has_the_statements(scripted: tuple[Engine, Script]) -> None:
    engine, _ = scripted
    add = partial(add_ten_under_lock, sessionmaker(engine, class_=LockingSession), Order)
    (failure, *_) = explore(add, add, before=nothing, invariant=lambda: False).failures
    assert "UPDLOCK" in failure.timeline
    assert "tests/sql/test_mssql_explore.py:" in failure.timeline
