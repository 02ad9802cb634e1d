"""The rows and lock orders that the audit and the exploration find in statements."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, Integer, MetaData, Table, and_, event, or_, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.orm import Session, joinedload

from doclock_audit import lock_order
from doclock_audit.exploration.footprint import (
    Reading,
    accesses_of,
    level_set_by,
    modes_of_tables,
    rows_of,
)
from doclock_audit.lock_order import LockOrder
from doclock_audit.places import Place
from doclock_audit.rows import Row
from doclock_audit.sent import facts_of, key_sent
from doclock_audit.transactions import RowLock, Transaction
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

# --------------------------------------------------------------------------------------------------
# A context that shows the audit which row an UPDATE names by key.

LINES = Table(
    "lines",
    MetaData(),
    Column("order_id", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("amount", Integer),
)
ORDER, NUMBER, AMOUNT = LINES.c
KEY = and_(ORDER == 1, NUMBER == 2)


class Context:
    def __init__(self, where: ColumnElement[bool]) -> None:
        self.compiled = (
            update(LINES).values(amount=3).where(where).compile(dialect=sqlite.dialect())
        )


@rows(
    ("where", "key"),
    [
        (KEY, (1, 2)),
        (and_(NUMBER == 2, AMOUNT > 0, ORDER == 1), (1, 2)),
        (ORDER == 1, None),
        (or_(KEY, AMOUNT > 0), None),
        (and_(ORDER == 1, or_(NUMBER == 2, NUMBER == 3)), None),
    ],
    ids=str,
)
def test_an_update_names_a_row_only_where_each_row_that_it_meets_has_this_key(
    where: ColumnElement[bool], key: tuple[int, ...] | None
) -> None:
    context = Context(where)
    sent = facts_of("UPDATE", context).update
    assert sent is not None
    assert key_sent(sent.key, context.compiled.params) == key


def test_engines_share_the_facts_of_a_statement_and_a_lock_that_sqlite_does_not_write_is_one() -> (
    None
):
    facts = []

    def note(
        _connection: object, _cursor: object, text: str, _given: object, context: Any, _: bool
    ) -> None:
        facts.append((text, facts_of(text, context)))

    engines = [sa.create_engine("sqlite://") for _ in range(2)]
    for engine in engines:
        LINES.metadata.create_all(engine)
        event.listen(engine, "before_cursor_execute", note)
        with engine.connect() as connection:
            connection.execute(sa.select(LINES).where(ORDER == 1))
            connection.execute(sa.select(LINES).where(ORDER == 2).with_for_update())
    (text, plain), (same_text, locking), *others = facts
    assert text == same_text
    assert (plain.asks, locking.asks) == (False, True)
    assert [found for _, found in others] == [plain, locking]
    assert others[0][1] is plain


# --------------------------------------------------------------------------------------------------
# Lock orders across transactions: row cycles are certain, class cycles possible.


def run(rule: LockOrder, *rows: str) -> None:
    """Lock rows such as ``A1`` in one transaction, each on a separate line."""
    transaction = Transaction()
    for line, name in enumerate(rows, 1):
        row = Row(f"shop.{name[0]}", (int(name[1:]),))
        lock = RowLock(Place("shop.py", line), line)
        rule.locked(transaction, row, lock)
        transaction.locks[row] = lock


def found(*transactions: str) -> list[tuple[bool, str]]:
    rule, merged = LockOrder(), LockOrder()
    for statements in transactions:
        run(rule, *statements.split())
    merged.merge(json.loads(json.dumps(rule.export())))
    assert list(merged.findings()) == list(rule.findings())
    return [(one.certain, one.message.partition(": ")[2]) for one in rule.findings()]


@rows(
    ("transactions", "certain"),
    [
        (("A1 A2", "A2 A1"), [True]),
        (("A1 B1", "B1 A1"), [True]),
        (("A1 B1", "B1 C1", "C1 A1"), [True]),
        (("A1 B1", "B2 A2"), [False]),
        (("A1 B1", "B2 C2", "C3 A3"), [False]),
        (("A1 A2", "A4 A3"), [False]),
        (("A1 A2", "A1 A2 A3", "A2 A3"), []),
        (("A1 B1", "A2 B1", "B1 C1", "A1 C1"), []),
        (("G1 A1 A2", "G1 A2 A1"), []),
        (("G1 A1 A2", "G2 A2 A1"), [True]),
        ((" ".join(f"A{n}" for n in range(1, 20)), "A19 A18"), [True]),
    ],
)
def test_the_orders_of_a_run(transactions: tuple[str, ...], certain: list[bool]) -> None:
    assert [one for one, _ in found(*transactions)] == certain


def test_each_place_of_a_cycle_is_named() -> None:
    ((_, message),) = found("A1 B1", "B1 A1")
    assert (
        message == "A at shop.py:1 and then B at shop.py:2; B at shop.py:1 and then A at shop.py:2"
    )


def test_an_order_that_is_the_oldest_and_is_seen_again_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lock_order, "_MOST_PAIRS", 2)
    rule = LockOrder()
    for rows_locked in ("A1 A2", "A3 A1", "A1 A3"):
        run(rule, *rows_locked.split())
    assert rule.left_out == 2
    assert [one.certain for one in rule.findings()] == [False]


# --------------------------------------------------------------------------------------------------
# explore() finds the tables and rows of a statement, to decide which statements conflict.

READ, SHARE, LOCK, WRITE = Mode.READ, Mode.SHARE, Mode.LOCK, Mode.WRITE
ORDERS, LINES_EXPLORE = "lk_order", "lk_line"


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
def found_explore(engine: sa.Engine) -> Found:
    """Collect the accesses and rows of each statement, as on a database with row locks."""
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
            {Access(READ, ORDERS), Access(READ, LINES_EXPLORE)},
        ),
        (change, {Access(WRITE, ORDERS, (1,))}),
        (delete, {Access(WRITE, LINES_EXPLORE, (1,))}),
        (add, {Access(WRITE, LINES_EXPLORE), Access(SHARE, ORDERS)}),
        (
            lambda session: session.execute(sa.delete(Order).where(Order.id == 9)),
            {Access(WRITE, ORDERS, (9,)), Access(WRITE, LINES_EXPLORE)},
        ),
        (
            lambda session: session.execute(sa.update(Line).where(Line.id == 1).values(order_id=2)),
            {Access(WRITE, LINES_EXPLORE, (1,)), Access(SHARE, ORDERS)},
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
    engine: sa.Engine, found_explore: Found, act: Act, accesses: set[Access]
) -> None:
    with Session(engine) as session:
        act(session)
    assert found_explore[-1][0] == accesses


def test_a_new_row_is_another_than_all_others(engine: sa.Engine, found_explore: Found) -> None:
    with Session(engine) as session:
        add(session)
    ((_, one),) = found_explore
    (row,) = one
    assert row.overlaps(Access(READ, LINES_EXPLORE))
    assert not row.overlaps(Access(READ, LINES_EXPLORE, (1,)))


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
