"""More keys than one statement takes: several statements, in the same order, one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import MaxParameters
from tests.integration.locking.steps import finds_held, locks, recorded, roll_back
from tests.support.actors import Actor
from tests.support.models import Base, Lease, Order, Voucher
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Run = Callable[..., list[Any]]
Session = LockingSession


def backwards(session: Session) -> list[Order]:
    return session.get_entities(Order, range(20, 0, -1), ForUpdate)


@pytest.fixture
def three_a_statement(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no statement have more than three keys, or one key of two columns."""
    monkeypatch.setattr(strategy_for(engine).statements, "max_parameters", MaxParameters(3))


@pytest.mark.usefixtures("three_a_statement")
def test_all_are_found_in_order(engine: sa.Engine, session: Session, twenty: range) -> None:
    assert len(backwards(session)) == 20  # has asked how the table is stored
    session.rollback()
    with recorded(engine) as statements:
        found = session.get_entities(Order, [*reversed(twenty), 99, 21], ForUpdate)
    assert [order.id for order in found] == list(twenty)
    assert list(session.held_locks) == [(Order, (ident,)) for ident in twenty]
    asked = [text for text in statements if "lk_order.total" in text]
    assert len(asked) >= 8  # 22 keys by 3; PostgreSQL asks once more for the two missing ones


@pytest.mark.usefixtures("three_a_statement")
def test_each_comes_once_though_it_is_in_several_statements(
    session: Session, twenty: range
) -> None:
    for lock in (LockOptions.None_, SharedRead, ForUpdate):
        found = session.get_entities(Order, [*twenty, *reversed(twenty)], lock)
        assert [order.id for order in found] == list(twenty)
        session.rollback()


@pytest.mark.usefixtures("three_a_statement")
def test_two_columns_take_two_parameters(session: Session, twenty: range) -> None:
    keys = [(2025, number) for number in twenty if number > 2]
    found = session.get_entities(Voucher, [(2024, 1), *reversed(keys)], ForUpdate)
    assert [(one.year, one.number) for one in found] == [(2024, 1), *keys]


@pytest.mark.usefixtures("three_a_statement")
def test_two_tables_are_read_under_their_locks(
    session: Session, other: Session, twenty: range
) -> None:
    found = session.get_entities(Lease, reversed(twenty), ForUpdate)
    assert [lease.id for lease in found] == [1, *range(3, 21)]
    assert finds_held(Lease, 1)(other)
    assert finds_held(Lease, 20)(other)


@pytest.mark.not_databases("sqlite")
@pytest.mark.usefixtures("three_a_statement", "twenty")
def test_who_waits_in_one_statement_holds_those_of_the_others_before(
    alice: Actor[Session], bob: Actor[Session], carol: Actor[Session]
) -> None:
    alice.does(locks(Order, 8))
    queued = bob.starts(backwards)
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    for ident, held in ((1, True), (7, True), (9, False), (20, False)):
        assert carol.does(finds_held(Order, ident)) is held, ident
    alice.does(roll_back)
    assert len(queued.result()) == 20


@pytest.mark.usefixtures("three_a_statement", "twenty")
def test_a_failure_in_the_last_statement_gives_all_back(session: Session, other: Session) -> None:
    other.get_one_entity(Order, 20, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE NOWAIT"):
        session.get_entities(Order, range(1, 21), ForUpdate | LockOptions.NoWait)
    assert not session.held_locks
    assert not session.in_transaction()
    other.rollback()
    assert not finds_held(Order, 1)(other)


@pytest.mark.not_databases("sqlite")  # the file's lock is one
@pytest.mark.parametrize("entity", [Order, Voucher])
def test_those_not_asked_for_are_left_alone_however_many_are_asked_for(
    engine: sa.Engine, session: Session, other: Session, entity: type[Any]
) -> None:
    # 1,000 is where MariaDB makes a subquery of a list.
    numbers = range(3, 2_500)
    if entity is Order:
        rows = [{"id": number, "total": 0, "remark": ""} for number in numbers]
        keys: list[Any] = [1, *numbers]
        rest: Any = 2
    else:
        rows = [{"year": 2025, "number": number, "total": 0} for number in numbers]
        keys = [(2024, 1), *((2025, number) for number in numbers)]
        rest = (2024, 2)
    with engine.begin() as connection:
        connection.execute(Base.metadata.tables[entity.__tablename__].insert(), rows)
    other.get_one_entity(entity, rest, ForUpdate)
    found = session.get_entities(entity, keys, ForUpdate | LockOptions.NoWait)
    assert len(found) == len(keys)
    other.rollback()
    assert not finds_held(entity, rest)(other)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql", "sqlite")
def test_33_000_keys(engine: sa.Engine, session: Session) -> None:
    with engine.begin() as connection:
        rows = [{"id": number, "total": 0, "remark": ""} for number in range(3, 33_001)]
        connection.execute(Base.metadata.tables["lk_order"].insert(), rows)
    for lock in (LockOptions.None_, ForUpdate):
        found = session.get_entities(Order, range(33_000, 0, -1), lock)
        assert [order.id for order in found] == list(range(1, 33_001)), lock
        assert len(session.held_locks) == (0 if lock is LockOptions.None_ else 33_000)
        session.rollback()
        session.expunge_all()
