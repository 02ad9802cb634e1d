"""Writes through another object for the table of a document: it is known by its schema and name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite

from sa_doclock import LockingSession
from tests.integration.guard.models import Line, Order, order_tag
from tests.integration.guard.steps import hold, refused, writes_sent

pytestmark = pytest.mark.quick

Session = LockingSession
Make = Callable[[sa.Table, Session], Any]


def default_schema(session: Session) -> str | None:
    return session.connection().dialect.default_schema_name


def light(table: sa.Table, schema: str | None = None) -> Any:
    return sa.table(table.name, *(sa.column(one.name) for one in table.columns), schema=schema)


def renamed(table: sa.Table, _: Session) -> Any:
    """Make one whose keys in Python are those of other columns of the mapped Table."""
    names = [one.name for one in table.columns]
    keys = {name: f"{name}_here" for name in names}
    columns = (
        sa.Column(one.name, one.type, key=keys[one.name], primary_key=one.primary_key)
        for one in table.columns
    )
    return sa.Table(table.name, sa.MetaData(), *columns)


def in_capitals(table: sa.Table, session: Session) -> Any:
    """Make one whose names are in capital letters, where the database does not mind."""
    dialect = session.connection().dialect.name
    written = str if dialect == "postgresql" else str.upper
    columns = (sa.Column(written(one.name), one.type, key=one.name) for one in table.columns)
    name = table.name.upper() if dialect == "sqlite" else table.name
    return sa.Table(name, sa.MetaData(), *columns)


OBJECTS: dict[str, Make] = {
    "to_metadata()": lambda t, _: t.to_metadata(sa.MetaData()),
    "reflected": lambda t, s: sa.Table(t.name, sa.MetaData(), autoload_with=s.connection()),
    "table()": lambda t, _: light(t),
    "the default schema": lambda t, s: light(t, default_schema(s)),
    "the default schema, a Table": lambda t, s: t.to_metadata(
        sa.MetaData(), schema=str(default_schema(s))
    ),
    "reversed": lambda t, _: sa.Table(
        t.name,
        sa.MetaData(),
        *(sa.Column(one.name, one.type) for one in reversed(list(t.columns))),
    ),
    "in capital letters": in_capitals,
}
each_object = pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
ORDERS: Any = Order.__table__
LINES: Any = Line.__table__


def upsert(session: Session, table: Any, values: dict[str, Any], **sets: Any) -> Any:
    name = session.connection().dialect.name
    if name in ("mysql", "mariadb"):
        return mysql.insert(table).values(values).on_duplicate_key_update(**sets)
    module: Any = {"postgresql": postgresql, "sqlite": sqlite}[name]
    return (
        module.insert(table).values(values).on_conflict_do_update(index_elements=["id"], set_=sets)
    )


#: Each writes to order 1 alone; with the tables of orders, lines and tags of orders.
WRITES: dict[str, Callable[[Session, Any, Any, Any], object]] = {
    "update": lambda s, o, *_: s.execute(sa.update(o).where(o.c.id == 1).values(total=7)),
    "update by columns": lambda s, o, *_: s.execute(
        sa.update(o).where(o.c.id == 1).values({o.c.total: o.c.total + 1})
    ),
    "update, ordered": lambda s, o, *_: s.execute(
        sa.update(o).where(o.c.id == 1).ordered_values((o.c.total, 7))
    ),
    "update of an alias": lambda s, o, *_: s.execute(
        sa.update(of := o.alias("o")).where(of.c.id == 1).values(total=7)
    ),
    "update by EXISTS": lambda s, o, n, _: s.execute(
        sa.update(o)
        .where(sa.exists().where(n.c.order_no == o.c.id, n.c.value == 20))
        .values(total=7)
    ),
    "update by parameters": lambda s, o, *_: s.execute(
        sa.update(o).where(o.c.id == sa.bindparam("key")).values(total=sa.bindparam("new")),
        [{"key": 1, "new": 3}],
    ),
    "update of parts": lambda s, _, n, __: s.execute(
        sa.update(n).where(n.c.order_no == 1).values(value=7)
    ),
    "delete of a part": lambda s, _, n, __: s.execute(sa.delete(n).where(n.c.id == 2)),
    "delete by a subquery": lambda s, o, n, __: s.execute(
        sa.delete(n).where(n.c.order_no.in_(sa.select(o.c.id).where(o.c.total == 30)), n.c.id == 2)
    ),
    "insert of a part": lambda s, _, n, __: s.execute(
        sa.insert(n).values(id=91, order_no=1, value=1)
    ),
    "insert of parts": lambda s, _, n, __: s.execute(
        sa.insert(n).values(
            [{"id": 91, "order_no": 1, "value": 1}, {"id": 92, "order_no": 1, "value": 2}]
        )
    ),
    "insert of a tuple": lambda s, _, n, __: s.execute(
        sa.insert(n).values(
            tuple({"id": 91, "order_no": 1, "value": 1}[k] for k in list(n.c.keys()))
        )
    ),
    "insert by parameters": lambda s, _, n, __: s.execute(
        sa.insert(n), [{"id": 91, "order_no": 1, "value": 1}, {"id": 92, "order_no": 1, "value": 1}]
    ),
    "insert from a select": lambda s, _, n, __: s.execute(
        sa.insert(n).from_select(
            ["value", "id", "order_no"],
            sa.select(LINES.c.value, LINES.c.id + 90, LINES.c.order_no).where(
                LINES.c.order_no == 1
            ),
        )
    ),
    "upsert": lambda s, o, *_: s.execute(upsert(s, o, {"id": 1, "total": 7}, total=7)),
    "insert of a tag": lambda s, _, __, t: s.execute(sa.insert(t).values(order_id=1, tag_id=3)),
    "delete of a tag": lambda s, _, __, t: s.execute(sa.delete(t).where(t.c.order_id == 1)),
}


@each_object
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_needs_the_lock(session: Session, make: Make, write: Any) -> None:
    tables = [make(one, session) for one in (ORDERS, LINES, order_tag)]
    with refused(session, Order, 1):
        write(session, *tables)


@each_object
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_under_the_lock_it_goes_through(session: Session, make: Make, write: Any) -> None:
    tables = [make(one, session) for one in (ORDERS, LINES, order_tag)]
    held = hold(session, Order, 1)
    with writes_sent(session) as sent:
        write(session, *tables)
    session.commit()
    assert sent
    assert held


@each_object
def test_a_part_that_moves_needs_both_locks(session: Session, make: Make) -> None:
    lines = make(LINES, session)
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(sa.update(lines).where(lines.c.id == 1).values(order_no=2))
    with refused(session, Order, 2):
        session.execute(sa.update(lines).where(lines.c.id == 1).values({lines.c.order_no: 2}))
    assert held


@each_object
def test_a_new_header_is_of_this_transaction(session: Session, make: Make) -> None:
    orders, lines = (make(one, session) for one in (ORDERS, LINES))
    session.execute(sa.insert(orders).values(id=9, total=1))
    session.execute(sa.insert(lines).values(id=99, order_no=9, value=1))
    session.execute(sa.update(orders).where(orders.c.id == 9).values(total=2))
    session.commit()


def test_other_keys_of_columns_and_columns_that_are_not_mapped(session: Session) -> None:
    lines = renamed(LINES, session)
    with refused(session, Order, 1):
        session.execute(sa.update(lines).where(lines.c.id_here == 1).values(value_here=7))
    held = hold(session, Order, 1)
    session.execute(sa.update(lines).where(lines.c.id_here == 1).values(value_here=7))
    with refused(session, Order, 2):
        session.execute(sa.update(lines).where(lines.c.id_here == 1).values(order_no_here=2))
    with refused(session, Order, 2):
        session.execute(sa.insert(lines), [{"id_here": 91, "order_no_here": 2}])
    assert held


@pytest.mark.databases("postgresql")
def test_a_name_in_other_letters_is_that_of_another_table(session: Session) -> None:
    capitals = sa.Table(
        ORDERS.name.upper(), sa.MetaData(), *(sa.Column(one.name, one.type) for one in ORDERS.c)
    )
    capitals.create(session.connection())
    session.execute(sa.insert(capitals).values(id=1, total=1))
    session.execute(sa.select(capitals.c.id).with_for_update()).all()
    assert not session.held_locks
    session.execute(sa.update(capitals).values(total=2))
    session.rollback()


@pytest.mark.parametrize("make", [make for make in OBJECTS.values() if make is not in_capitals])
def test_a_lock_by_it_permits_the_write(session: Session, make: Make) -> None:
    orders = make(ORDERS, session)
    statement = sa.select(orders.c.id, orders.c.total).where(orders.c.id == 1).with_for_update()
    session.execute(statement).all()
    session.execute(sa.update(orders).where(orders.c.id == 1).values(total=7))
    session.get_one(Line, 1).value = 7
    session.commit()
