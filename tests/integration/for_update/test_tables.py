"""with_for_update() of tables and columns: a real lock on each database, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased, registry

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    LockOrderViolation,
    UnsavedChanges,
)
from tests.integration.locking.steps import finds_held, recorded, roll_back
from tests.support.actors import Actor
from tests.support.databases import Database
from tests.support.models import Lease, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.read_committed

ORDERS: Any = Order.__table__
LINES: Any = Line.__table__
FIRST = ORDERS.c.id == 1
OTHER = ORDERS.alias("other")
JOIN = ORDERS.join(LINES, LINES.c.order_id == ORDERS.c.id)
CTE = sa.select(LINES.c.order_id).where(LINES.c.value > 0).cte()

#: Each locks the row of order 1, on every database.
TABLES: dict[str, sa.Select[Any]] = {
    "table": sa.select(ORDERS).where(FIRST),
    "column": sa.select(ORDERS.c.id).where(FIRST),
    "alias": sa.select(OTHER).where(OTHER.c.id == 1),
    "join": sa.select(LINES.c.id).select_from(JOIN).where(FIRST),
    "two tables": sa.select(ORDERS, LINES).where(FIRST, LINES.c.order_id == ORDERS.c.id),
    "beside a CTE": sa.select(ORDERS.c.id).join(CTE, CTE.c.order_id == ORDERS.c.id).where(FIRST),
    "literal": sa.select(sa.literal(1)).select_from(ORDERS).where(FIRST),
    "literal of a class": sa.select(sa.literal(1)).select_from(Order).where(Order.id == 1),
    "attribute": sa.select(Order.total).where(Order.id == 1),
    "label": sa.select(ORDERS.c.total, ORDERS.c.id.label("order")).where(FIRST),
    "label of an attribute": sa.select(Order.id.label("order")).where(Order.id == 1),
}
each_select = pytest.mark.parametrize("statement", TABLES.values(), ids=TABLES)

#: Selects of a table's whole key, and the classes whose rows are listed.
LISTED: dict[str, set[Any]] = {
    "table": {(Order, (1,))},
    "column": {(Order, (1,))},
    "alias": {(Order, (1,))},
    "join": {(Line, (ident,)) for ident in (1, 2)},
    "two tables": {(Order, (1,)), (Line, (1,)), (Line, (2,))},
    "beside a CTE": {(Order, (1,))},
    "label": {(Order, (1,))},
    "label of an attribute": {(Order, (1,))},
}

COUNT = sa.select(sa.func.count()).select_from(Order).where(Order.id == 1).with_for_update()


def held(session: LockingSession) -> dict[Any, LockOptions]:
    """Return the locks by the classes of these tests; other sessions find the rows locked too.

    Other tests of the same run map their own classes on the tables.
    """
    locks = session.held_locks.items()
    return {key: lock for key, lock in locks if key[0] in (Order, Line, Voucher)}


@pytest.mark.parametrize("name", TABLES)
def test_the_row_is_locked_and_its_key_is_listed(
    session: LockingSession, other: LockingSession, name: str
) -> None:
    assert session.execute(TABLES[name].with_for_update()).all()
    assert held(session).keys() == LISTED.get(name, set())
    assert finds_held()(other)
    session.rollback()
    assert not session.held_locks
    assert not finds_held()(other)


def test_a_class_that_is_mapped_no_more_is_forgotten(
    session: LockingSession, database: Database
) -> None:
    table = sa.Table("mapped_once", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    database.create(table.metadata)
    mapped, select = registry(), sa.select(table.c.id).with_for_update()
    first: Any = type("First", (), {})
    mapped.map_imperatively(first, table)
    session.execute(sa.insert(table).values(id=1))
    session.execute(select).all()
    assert (first, (1,)) in session.held_locks
    session.rollback()
    mapped.dispose()
    session.execute(sa.insert(table).values(id=1))
    assert session.execute(select).all() == [(1,)]
    assert not session.held_locks


def test_of_says_which_keys_are_listed(session: LockingSession) -> None:
    both = TABLES["two tables"].with_for_update(of=LINES)
    assert session.execute(both).all()
    assert held(session).keys() == {(Line, (1,)), (Line, (2,))}


def test_half_of_a_key_and_the_table_of_a_subclass_are_not_listed(session: LockingSession) -> None:
    vouchers: Any = Voucher.__table__
    assert session.execute(sa.select(vouchers.c.year).with_for_update()).all()
    assert session.execute(sa.select(Lease.__table__).with_for_update()).all()
    assert not session.held_locks
    found = session.execute(sa.select(vouchers.c.number, vouchers.c.year).with_for_update()).all()
    assert held(session).keys() == {(Voucher, (year, number)) for number, year in found}


def test_what_was_loaded_of_it_is_read_again(session: LockingSession) -> None:
    order = session.get_one(Order, 1)
    order.lines  # noqa: B018  # loads them
    session.execute(TABLES["column"].with_for_update()).all()
    assert {"total", "lines"} <= sa.inspect(order).unloaded


def test_an_object_is_read_again_of_which_the_table_of_the_subclass_alone_is_locked(
    session: LockingSession, other: LockingSession
) -> None:
    session.expire_on_commit = False
    lease = session.scalars(sa.select(Lease).order_by(Lease.id).limit(1)).one()
    session.commit()
    rents: Any = Lease.__table__
    other.execute(sa.update(rents).values(rent=lease.rent + 10))
    other.commit()
    of_lease = sa.select(Lease).where(Lease.id == lease.id).with_for_update(of=rents)
    before = lease.rent
    assert session.scalars(of_lease).one() is lease
    assert lease.rent == before + 10


def test_a_pending_change_is_refused(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 1
    with session.no_autoflush:  # SQLAlchemy 2.1 also flushes before a Core statement
        session.execute(sa.select(ORDERS).where(ORDERS.c.id == 2).with_for_update()).all()
    with session.no_autoflush, pytest.raises(UnsavedChanges, match=r"pending changes"):
        session.execute(TABLES["column"].with_for_update())
    assert held(session).keys() == {(Order, (2,))}


def test_its_class_has_its_place_in_the_declared_order(engine: sa.Engine) -> None:
    granted: list[Any] = []
    with LockingSession(engine, lock_order=[Line, Order]) as session:
        event.listen(session, "lock_acquired", lambda _, document, *__: granted.append(document))
        session.execute(TABLES["column"].with_for_update()).all()
        with pytest.raises(LockOrderViolation):
            session.execute(sa.select(LINES.c.id).with_for_update())
    assert [one for one in granted if one[0] is Order] == [(Order, (1,))]


def test_the_rows_are_still_in_the_result(session: LockingSession) -> None:
    every = sa.select(ORDERS.c.id, ORDERS.c.total).order_by(ORDERS.c.id).with_for_update()
    assert dict(session.execute(every).mappings().first() or {}) == {"id": 1, "total": 30}
    assert [*session.execute(every).yield_per(1).scalars()] == [1, 2]
    result = session.execute(every)
    assert [len(result.fetchmany(1)) for _ in range(3)] == [1, 1, 0]
    assert session.scalar(every) == 1


def test_the_second_waits_for_the_first(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    locked = TABLES["table"].with_for_update()
    alice.does(lambda session: session.execute(locked).all())
    queued = bob.starts(lambda session: session.execute(locked).all())
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()


def test_nobody_else_changes_what_is_read(session: LockingSession, other: LockingSession) -> None:
    total: Any = session.scalar(sa.select(ORDERS.c.total).where(FIRST).with_for_update())
    assert finds_held()(other)
    session.execute(sa.update(ORDERS).where(FIRST).values(total=total + 1))
    session.commit()
    assert other.scalar(sa.select(ORDERS.c.total).where(FIRST)) == 31


@pytest.mark.own_logic
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@each_select
def test_the_same_is_sent_as_by_a_plain_session(
    engine: sa.Engine, statement: sa.Select[Any]
) -> None:
    texts = []
    for kind in (Session, LockingSession):
        with kind(engine) as session, recorded(engine) as statements:
            session.execute(statement.with_for_update()).all()
        texts.append(list(statements))
    assert texts[0] == texts[1]


def test_of_several_tables_one_may_be_meant(
    session: LockingSession, other: LockingSession, documents: Database
) -> None:
    session.execute(TABLES["join"].with_for_update(of=LINES.c.id)).all()
    without_of = documents.name in ("mariadb", "sqlite")
    assert finds_held()(other) is without_of


def test_a_count_is_locked_or_refused(
    session: LockingSession, other: LockingSession, documents: Database
) -> None:
    if documents.name == "postgresql":
        with pytest.raises(DBAPIError, match="aggregate"):
            session.execute(COUNT)
    else:
        assert session.execute(COUNT).scalar() == 1
        assert finds_held()(other)


def test_nowait_is_a_typed_error(session: LockingSession, other: LockingSession) -> None:
    other.execute(TABLES["table"].with_for_update()).all()
    with pytest.raises(LockNotAvailable) as caught:
        session.execute(TABLES["table"].with_for_update(nowait=True)).all()
    assert str(caught.value).count("FOR UPDATE NOWAIT on ") == 1  # only once


def test_skip_locked(session: LockingSession, other: LockingSession, documents: Database) -> None:
    every = sa.select(ORDERS.c.id).order_by(ORDERS.c.id).with_for_update(skip_locked=True)
    if documents.name == "sqlite":
        with pytest.raises(LockNotSupported, match="nothing to skip"):
            session.execute(every)
        assert not session.in_transaction()
        return
    other.execute(TABLES["table"].with_for_update()).all()
    assert session.scalars(every).all() == [2]


def test_a_read_lock(session: LockingSession) -> None:
    for key_share in (False, True):
        statement = TABLES["table"].with_for_update(read=True, key_share=key_share)
        assert session.execute(statement).all()
        assert session.in_transaction()
        listed = {} if key_share else {(Order, (1,)): LockOptions.SharedRead}
        assert held(session) == listed
        session.rollback()


@pytest.mark.databases("sqlite")
def test_for_key_share_reads_in_a_transaction(session: LockingSession) -> None:
    statement = sa.select(Order).where(Order.id == 1).with_for_update(read=True, key_share=True)
    session.scalars(statement).one()
    assert session.connection().connection.driver_connection.in_transaction  # type: ignore[union-attr]
    assert not session.held_locks


def test_a_transaction_that_has_written_is_locked_too(
    session: LockingSession, other: LockingSession
) -> None:
    session.execute(sa.update(LINES).where(LINES.c.id == 3).values(value=6))
    session.execute(TABLES["table"].with_for_update()).all()
    assert finds_held()(other)
    session.commit()
    assert other.scalar(sa.select(LINES.c.value).where(LINES.c.id == 3)) == 6


# The server does not lock these: https://www.postgresql.org/docs/current/sql-select.html, "The
# Locking Clause"; https://dev.mysql.com/doc/refman/en/innodb-locking-reads.html: "A locking read
# clause in an outer statement does not lock the rows of a table in a nested subquery statement".

SUBQUERY = sa.select(ORDERS).where(FIRST).subquery()
WITH = sa.select(ORDERS).where(FIRST).cte()
DERIVED: dict[str, sa.Select[Any]] = {
    "subquery": sa.select(SUBQUERY),
    "subquery as a class": sa.select(aliased(Order, SUBQUERY)),
}
NOT_LOCKED: dict[str, sa.Select[Any]] = {
    "CTE": sa.select(WITH),
    "CTE as a class": sa.select(aliased(Order, WITH)),
    "EXISTS": sa.select(sa.literal(1)).where(sa.select(ORDERS.c.id).where(FIRST).exists()),
}


@pytest.mark.parametrize("statement", DERIVED.values(), ids=DERIVED)
def test_rows_of_a_subquery_are_locked_or_refused(
    session: LockingSession,
    other: LockingSession,
    documents: Database,
    statement: sa.Select[Any],
) -> None:
    if documents.name in ("mysql", "mariadb", "mssql"):
        _refuse(session, statement)
    else:
        assert session.execute(statement.with_for_update()).all()
        assert finds_held()(other)


@pytest.mark.parametrize("statement", NOT_LOCKED.values(), ids=NOT_LOCKED)
def test_rows_that_no_server_locks_are_refused(
    session: LockingSession,
    other: LockingSession,
    documents: Database,
    statement: sa.Select[Any],
) -> None:
    if documents.name == "sqlite":  # it locks the whole file
        assert session.execute(statement.with_for_update()).all()
        assert finds_held()(other)
    else:
        _refuse(session, statement)


def _refuse(session: LockingSession, statement: sa.Select[Any]) -> None:
    with pytest.raises(LockNotSupported):
        session.execute(statement.with_for_update())
    assert not session.in_transaction()


def test_of_leaves_a_subquery_out(session: LockingSession, other: LockingSession) -> None:
    latest = aliased(Line, sa.select(Line).where(Line.id == 2).subquery())
    both = sa.select(Order, latest).join(latest, latest.order_id == Order.id)
    _, line = session.execute(both.with_for_update(of=Order)).one()
    assert line.value == 20
    assert held(session) == {(Order, (1,)): LockOptions.ForUpdate}
    assert finds_held()(other)


@pytest.mark.databases("postgresql")
def test_of_may_name_a_subquery(session: LockingSession, other: LockingSession) -> None:
    chosen = aliased(Order, SUBQUERY)
    both = sa.select(Line, chosen).join(chosen, Line.order_id == chosen.id)
    assert session.execute(both.with_for_update(of=chosen)).all()
    assert held(session) == {(Order, (1,)): LockOptions.ForUpdate}
    assert finds_held()(other)
    assert not finds_held(Line, 1)(other)


@pytest.fixture
def derived_class() -> Iterator[type[Any]]:
    """Map a class to a UNION of orders."""
    first, second = (
        sa.select(ORDERS.c.id, ORDERS.c.total).where(ORDERS.c.id == ident) for ident in (1, 2)
    )
    union = sa.union_all(first, second).subquery()
    mappers = registry()
    mapped = type("Derived", (), {})
    mappers.map_imperatively(mapped, union, primary_key=[union.c.id])
    yield mapped
    mappers.dispose()


def test_a_class_mapped_to_a_union_is_locked_or_refused(
    session: LockingSession,
    other: LockingSession,
    documents: Database,
    derived_class: type[Any],
) -> None:
    statement = sa.select(derived_class)
    if documents.name == "sqlite":
        assert session.scalars(statement.with_for_update()).all()
        assert finds_held()(other)
    elif documents.name == "postgresql":  # refused by the server
        with pytest.raises(DBAPIError, match="UNION"):
            session.scalars(statement.with_for_update())
    else:
        _refuse(session, statement)


@pytest.mark.parametrize("lock", [lambda s: s, lambda s: s.with_for_update()])
def test_locked_needs_an_orm_select(
    session: LockingSession, lock: Callable[[sa.Select[Any]], sa.Select[Any]]
) -> None:
    for statement in (sa.select(ORDERS), sa.select(ORDERS.c.id), sa.select(sa.literal(1))):
        with pytest.raises(TypeError, match="needs an ORM select"):
            session.locked(lock(statement)).__enter__()
    with pytest.raises(ValueError, match="one mapped class"):
        session.locked(lock(sa.select(Order.id))).__enter__()
    assert not session.in_transaction()


class RoutingSession(LockingSession):
    """A session that writes orders to the primary, and does everything else anywhere."""

    primary: sa.Engine
    replica: sa.Engine

    def get_bind(self, mapper: Any = None, *, clause: Any = None, **_: Any) -> Any:
        writes = isinstance(clause, sa.Update) and clause.table is ORDERS
        return self.primary if writes else self.replica


def test_a_routing_session_locks_where_it_writes(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], other: LockingSession
) -> None:
    with RoutingSession() as session:
        session.primary, session.replica = (make_engine(**read_committed) for _ in range(2))
        with recorded(session.primary) as at_primary, recorded(session.replica) as at_replica:
            session.execute(TABLES["table"].with_for_update()).all()
        assert at_primary
        assert not at_replica
        assert finds_held()(other)
