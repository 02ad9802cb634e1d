"""More keys than fit in one statement: several statements, in the same order, one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.orm import contains_eager

from sa_doclock import LockingSession, LockNotAvailable, LockOptions, claim_each, with_lock
from sa_doclock.dialects import strategy_for
from sa_doclock.dialects.base import MaxParameters
from tests.integration.locking.steps import finds_held, locks, recorded, roll_back
from tests.support.actors import Actor
from tests.support.models import Base, Lease, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Run = Callable[..., list[Any]]
Session = LockingSession


def backwards(session: Session) -> list[Order]:
    return session.get_entities(Order, range(20, 0, -1), ForUpdate)


@pytest.fixture
def three_a_statement(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each statement to three keys, or one key of two columns."""
    monkeypatch.setattr(strategy_for(engine).statements, "max_parameters", MaxParameters(3))


@pytest.mark.usefixtures("three_a_statement")
def test_all_are_found_in_order(engine: sa.Engine, session: Session, twenty: range) -> None:
    assert len(backwards(session)) == 20  # queries how the table is stored
    session.rollback()
    with recorded(engine) as statements:
        found = session.get_entities(Order, [*reversed(twenty), 99, 21], ForUpdate)
    assert [order.id for order in found] == list(twenty)
    assert list(session.held_locks) == [(Order, (ident,)) for ident in twenty]
    asked = [text for text in statements if "lk_order.total" in text]
    assert len(asked) >= 8  # 22 keys by 3; PostgreSQL queries the two missing ones again


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


@pytest.mark.not_databases("sqlite")  # there is one lock per file
@pytest.mark.parametrize("entity", [Order, Voucher])
def test_those_not_asked_for_are_left_alone_however_many_are_asked_for(
    engine: sa.Engine, session: Session, other: Session, entity: type[Any]
) -> None:
    # MariaDB turns a list of 1,000 into a subquery.
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


# --------------------------------------------------------------------------------------------------
# A set with more rows than one statement takes keys: same rows, same order, all locked.

_LIMIT = 6
_NO_LEASE = 2  # a contract that is not a lease


@pytest.fixture
def few_parameters(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a set have three keys per statement; return the numbers of parameters sent."""
    monkeypatch.setattr(strategy_for(engine).statements, "max_parameters", MaxParameters(_LIMIT))
    sent: list[int] = []

    @event.listens_for(engine, "before_cursor_execute")
    def count(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "lk_" in statement:
            sent.append(len(parameters))

    return sent


@pytest.fixture
def lines(twenty: range, elsewhere: Run) -> list[int]:
    """Insert two lines for each order; return their orders by the number of the line."""
    orders = [*twenty, *reversed(twenty)]
    rows = [
        {"id": 100 + number, "order_id": order, "name": "x", "value": number}
        for number, order in enumerate(orders)
    ]
    elsewhere(sa.delete(Line), sa.insert(Line).values(rows))
    return orders


@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_rows_of_two_tables(
    session: LockingSession, few_parameters: list[int], twenty: range, lock: LockOptions
) -> None:
    statement = session.entity_set(Lease, lock).order_by(Lease.id.desc())
    leases = [ident for ident in reversed(twenty) if ident != _NO_LEASE]
    assert [lease.id for lease in session.scalars(statement)] == leases
    assert len(session.held_locks) == len(leases)
    assert max(few_parameters) <= _LIMIT


def test_limit_and_offset(
    session: LockingSession, few_parameters: list[int], twenty: range
) -> None:
    statement = session.entity_set(Lease, ForUpdate).order_by(Lease.id.desc()).offset(2).limit(9)
    found = [lease.id for lease in session.scalars(statement)]
    assert found == [ident for ident in reversed(twenty) if ident != _NO_LEASE][2:11]
    assert {key for _, (key,) in session.held_locks} == set(found)
    assert max(few_parameters) <= _LIMIT


@pytest.mark.usefixtures("few_parameters")
def test_columns_beside_the_header(session: LockingSession, lines: list[int]) -> None:
    statement = sa.select(Line.id, Order.total, Order).join(Order.lines).order_by(Line.id)
    result = session.execute(with_lock(statement, ForUpdate, Order))
    assert list(result.keys()) == ["id", "total", "Order"]
    rows = result.all()
    assert [row.Order.id for row in rows] == lines
    assert [row.id for row in rows] == [100 + number for number in range(len(lines))]
    assert all(len(row) == 3 for row in rows)
    assert len(session.held_locks) == 20


@pytest.mark.usefixtures("few_parameters")
def test_limit_of_a_join(session: LockingSession, lines: list[int]) -> None:
    statement = sa.select(Order).join(Order.lines).order_by(Line.id.desc()).limit(17)
    found = session.scalars(with_lock(statement, ForUpdate)).all()
    assert [order.id for order in found] == lines[::-1][:17]
    assert {key for _, (key,) in session.held_locks} == set(lines[::-1][:17])


@pytest.mark.usefixtures("few_parameters")
def test_joined_collections(session: LockingSession, lines: list[int]) -> None:
    statement = with_lock(
        sa.select(Order).join(Order.lines).options(contains_eager(Order.lines)).order_by(Line.id),
        ForUpdate,
    )
    with pytest.raises(InvalidRequestError, match="unique"):
        session.scalars(statement).all()
    found = session.scalars(statement).unique().all()
    assert [order.id for order in found] == lines[:20]
    assert all(len(order.lines) == 2 for order in found)


@pytest.mark.usefixtures("few_parameters", "twenty")
def test_composite_keys(session: LockingSession, other: LockingSession) -> None:
    total = sa.select(sa.func.max(Order.total)).scalar_subquery()
    statement = sa.select(Voucher.number, total).order_by(Voucher.number.desc(), Voucher.year)
    rows = session.execute(with_lock(statement, ForUpdate, Voucher)).all()
    assert [row[0] for row in rows] == [*range(20, 2, -1), 2, 1]
    if session.get_bind().dialect.name != "sqlite":
        for key in ((2024, 1), (2025, 20)):
            assert finds_held(Voucher, key)(other)


@pytest.mark.usefixtures("few_parameters")
@pytest.mark.not_databases("sqlite")
def test_what_others_hold_is_left_out(
    session: LockingSession, other: LockingSession, twenty: range
) -> None:
    other.get_one_entity(Lease, 7, ForUpdate)
    statement = session.entity_set(Lease, ForUpdate | LockOptions.SkipLocked).order_by(Lease.id)
    found = [lease.id for lease in session.scalars(statement)]
    assert found == [ident for ident in twenty if ident not in (_NO_LEASE, 7)]
    assert len(session.held_locks) == len(found)


@pytest.mark.databases("mariadb")
@pytest.mark.usefixtures("few_parameters")
def test_they_are_locked_in_the_order_of_their_keys(
    session: LockingSession, engine: sa.Engine, lines: list[int]
) -> None:
    locked: list[Any] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> None:
        if "FOR UPDATE" in statement:
            locked.extend(parameters.values())

    statement = sa.select(Order).join(Order.lines).order_by(Line.id.desc())
    session.scalars(with_lock(statement, ForUpdate)).all()
    assert locked == sorted(set(lines))


def test_claims(
    session_factory: Callable[[], LockingSession], few_parameters: list[int], twenty: range
) -> None:
    claimed = []
    for claim in claim_each(session_factory, sa.select(Lease), batch=2):
        with claim as lease:
            claimed.append(lease.id)
    assert claimed == [ident for ident in twenty if ident != _NO_LEASE]
    assert max(few_parameters) <= _LIMIT


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.databases("postgresql", "sqlite")
def test_seventy_thousand_rows(
    session: LockingSession, other: LockingSession, engine: sa.Engine
) -> None:
    """PostgreSQL takes 65,535 parameters, SQLite 32,766 or fewer."""
    numbers = range(100, 70_100)
    tables = Lease.metadata.tables
    with engine.begin() as connection:
        contracts = [{"id": n, "kind": "lease", "total": n} for n in numbers]
        connection.execute(tables["lk_contract"].insert(), contracts)
        connection.execute(tables["lk_lease"].insert(), [{"id": n, "rent": 7} for n in numbers])
    statement = session.entity_set(Lease, ForUpdate).where(Lease.id >= 100)
    found = session.scalars(statement.order_by(Lease.id.desc())).all()
    assert [lease.id for lease in found] == list(reversed(numbers))
    assert len(session.held_locks) == len(numbers)
    if session.get_bind().dialect.name != "sqlite":
        assert finds_held(Lease, numbers[-1])(other)
    session.rollback()
    session.expunge_all()
    assert len(session.get_documents(Lease, numbers, ForUpdate)) == len(numbers)
