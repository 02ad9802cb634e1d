"""The tables and rows that explore() finds in a statement, for its relation of conflicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import Session, joinedload

from doclock_audit.exploration.footprint import (
    Reading,
    accesses_of,
    level_set_by,
    modes_of_tables,
    rows_of,
)
from sa_doclock.testing.scheduling.accesses import (
    ANYTHING,
    Access,
    Accesses,
    Mode,
    TransactionAccesses,
    conflict,
)
from tests.support.models import Base, Line, Order, refill
from tests.support.rows import rows

READ, SHARE, LOCK, WRITE = Mode.READ, Mode.SHARE, Mode.LOCK, Mode.WRITE
ORDERS, LINES = "lk_order", "lk_line"


@rows(
    ("statement", "tables"),
    [
        ("SELECT a FROM shop.t", [("t", READ)]),
        ('SELECT "x".a FROM "Shop"."T" AS x JOIN [U] ON 1 = 1', [("t", READ), ("u", READ)]),
        ("SELECT a FROM t, LATERAL (SELECT b FROM u) AS v, w", [("t", READ), ("u", READ)]),
        ("SELECT a FROM t WHERE b = 'from u' -- from v", [("t", READ)]),
        ("SELECT a FROM t FOR NO KEY UPDATE OF t", [("t", LOCK)]),
        ("SELECT a FROM t WITH (UPDLOCK, ROWLOCK)", [("t", LOCK)]),
        ("SELECT a FROM t LOCK IN SHARE MODE", [("t", SHARE)]),
        ("UPDATE t SET a = (SELECT max(b) FROM u)", [("t", WRITE), ("u", READ)]),
        ("DELETE FROM t WHERE a IN (SELECT b FROM u)", [("t", WRITE), ("u", READ)]),
        ("INSERT INTO t (a) SELECT b FROM u", [("t", WRITE), ("u", READ)]),
        ("INSERT INTO t (a) VALUES (1) ON CONFLICT DO UPDATE SET a = 2", [("t", WRITE)]),
        ("WITH x AS (UPDATE t SET a = 1 RETURNING a) SELECT a FROM x", [("t", WRITE), ("x", READ)]),
    ],
)
def test_the_tables_of_a_text(statement: str, tables: list[tuple[str, Mode]]) -> None:
    assert modes_of_tables(statement, READ)[: len(tables)] == tables


@pytest.fixture
def engine() -> Iterator[sa.Engine]:
    engine = sa.create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        refill(connection)
    yield engine
    engine.dispose()


Found = list[tuple[Accesses, Accesses]]


@pytest.fixture
def found(engine: sa.Engine) -> Found:
    """Collect the accesses of each statement, and its rows, as of a database with row locks."""
    result: Found = []

    def note(_c: object, _u: object, statement: str, _p: object, context: Any, _m: bool) -> None:
        result.append((accesses_of(statement, context, Reading()), rows_of(statement, context)))

    event.listen(engine, "before_cursor_execute", note)
    return result


def change(session: Session) -> None:
    session.get_one(Order, 1).total += 1
    session.flush()


def delete(session: Session) -> None:
    session.delete(session.get_one(Line, 1))
    session.flush()


def add(session: Session) -> None:
    session.add(Line(id=9, order_id=1, name="new", value=1))
    session.flush()


Act = Callable[[Session], object]
BY_ID = sa.select(Order).where(Order.id == 1)


@pytest.mark.parametrize(
    ("act", "accesses"),
    [
        (lambda session: session.get(Order, 1), {Access(READ, ORDERS, (1,))}),
        (
            lambda session: session.scalars(BY_ID.where(Order.total > 1)),
            {Access(READ, ORDERS, (1,))},
        ),
        (
            lambda session: session.scalars(BY_ID.where(Order.id == Order.total)),
            {Access(READ, ORDERS, (1,))},
        ),
        (lambda session: session.scalars(sa.select(Order)), {Access(READ, ORDERS)}),
        (
            lambda session: session.scalars(
                sa.select(Order).where(sa.or_(Order.id == 1, Order.id == 2))
            ),
            {Access(READ, ORDERS)},
        ),
        (
            lambda session: session.scalars(BY_ID.options(joinedload(Order.lines))).unique(),
            {Access(READ, ORDERS), Access(READ, LINES)},
        ),
        (change, {Access(WRITE, ORDERS, (1,))}),
        (delete, {Access(WRITE, LINES, (1,))}),
        (add, {Access(WRITE, LINES), Access(SHARE, ORDERS)}),
        (
            lambda session: session.execute(sa.delete(Order).where(Order.id == 9)),
            {Access(WRITE, ORDERS, (9,)), Access(WRITE, LINES)},
        ),
        (
            lambda session: session.execute(sa.update(Line).where(Line.id == 1).values(order_id=2)),
            {Access(WRITE, LINES, (1,)), Access(SHARE, ORDERS)},
        ),
        (
            lambda session: session.execute(
                sa.update(Order)
                .where(Order.id == 1)
                .values(total=sa.select(sa.func.max(Order.total)).scalar_subquery())
            ),
            {Access(WRITE, ORDERS), Access(READ, ORDERS)},
        ),
        (lambda session: session.execute(sa.text("SELECT 1")), set()),
        (lambda session: session.execute(sa.select(sa.func.random())), ANYTHING),
        (lambda session: session.execute(sa.text("DELETE FROM lk_line")), ANYTHING),
        (lambda session: session.connection().begin_nested(), set()),
    ],
)
def test_the_accesses_of_a_statement(
    engine: sa.Engine, found: Found, act: Act, accesses: set[Access]
) -> None:
    with Session(engine) as session:
        act(session)
    assert found[-1][0] == accesses


def test_a_new_row_is_another_than_all_others(engine: sa.Engine, found: Found) -> None:
    with Session(engine) as session:
        add(session)
    ((_, one),) = found
    (row,) = one
    assert row.overlaps(Access(READ, LINES))
    assert not row.overlaps(Access(READ, LINES, (1,)))


@pytest.mark.parametrize(
    ("statement", "level"),
    [
        ("SET TRANSACTION ISOLATION LEVEL REPEATABLE  READ, READ ONLY", "REPEATABLE READ"),
        ("set session transaction isolation level read committed", "READ COMMITTED"),
        ("SET @@transaction_isolation = 'SERIALIZABLE'", ""),
        ("SET lock_timeout = 3", None),
    ],
)
def test_the_level_that_a_statement_sets(statement: str, level: str | None) -> None:
    assert level_set_by(statement) == level


def test_what_is_locked_already_adds_nothing_until_the_end() -> None:
    transaction = TransactionAccesses()
    lock = frozenset({Access(LOCK, "t", (1,))})
    write = frozenset({Access(WRITE, "t", (1,))})
    assert transaction.new(lock) == lock
    transaction.add(lock)
    assert transaction.new(lock) == frozenset()
    changed = transaction.new(write)
    assert not conflict(changed, lock)
    assert conflict(changed, frozenset({Access(READ, "t")}))
    transaction.add(changed)
    end = transaction.ended()
    assert conflict(end, lock)
    assert conflict(end, frozenset({Access(Mode.SNAPSHOT_READ, "t", (1,))}))
    assert not conflict(end, frozenset({Access(Mode.SNAPSHOT_READ, "t", (2,))}))
    transaction.forget_locks()
    assert transaction.new(write) == write
