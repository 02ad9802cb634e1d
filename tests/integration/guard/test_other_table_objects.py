"""Writes through another Table object of a document's table, recognized by schema and name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, UnsavedChanges, document
from tests.integration.guard.models import Line, Order, order_tag
from tests.integration.guard.steps import hold, refused, writes_sent

pytestmark = [pytest.mark.quick, pytest.mark.each_value]


Session = LockingSession
Make = Callable[[sa.Table, Session], Any]


def default_schema(session: Session) -> str | None:
    return session.connection().dialect.default_schema_name


def light(table: sa.Table, schema: str | None = None) -> Any:
    return sa.table(table.name, *(sa.column(one.name) for one in table.columns), schema=schema)


def renamed(table: sa.Table, _: Session) -> Any:
    """Make a Table whose Python keys are those of other columns of the mapped Table."""
    names = [one.name for one in table.columns]
    keys = {name: f"{name}_here" for name in names}
    columns = (
        sa.Column(one.name, one.type, key=keys[one.name], primary_key=one.primary_key)
        for one in table.columns
    )
    return sa.Table(table.name, sa.MetaData(), *columns)


def in_capitals(table: sa.Table, session: Session) -> Any:
    """Make a Table with upper-case names, where the database ignores case."""
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


#: Each writes only to order 1; with the tables of orders, lines and order tags.
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


# --------------------------------------------------------------------------------------------------
# Writes through classes of another registry that map a document's tables by name.


class Classes(NamedTuple):
    """Classes on the tables of orders, lines and order tags."""

    order: Any
    line: Any
    tag: Any


@pytest.fixture(params=["no schema", "the default schema"])
def classes(request: pytest.FixtureRequest, session: Session) -> Iterator[Classes]:
    """Map the tables again, with different Python names, some taken from other columns."""
    named = request.param == "the default schema"
    schema = session.connection().dialect.default_schema_name if named else None

    class Base(DeclarativeBase):
        metadata = sa.MetaData(schema=schema)

    class OtherOrder(Base):
        __tablename__ = "gd_order"
        number: Mapped[int] = mapped_column("id", primary_key=True, autoincrement=False)
        sum: Mapped[int] = mapped_column("total", default=0)

    class OtherLine(Base):
        __tablename__ = "gd_line"
        number: Mapped[int] = mapped_column("id", primary_key=True, autoincrement=False)
        order: Mapped[int] = mapped_column("order_no")
        order_id: Mapped[int] = mapped_column("value", default=0)

    class OtherTag(Base):
        __tablename__ = "gd_order_tag"
        order: Mapped[int] = mapped_column("order_id", primary_key=True)
        tag: Mapped[int] = mapped_column("tag_id", primary_key=True)

    kept = session.get_one(Order, 2)  # the session uses the document too
    yield Classes(OtherOrder, OtherLine, OtherTag)
    session.close()
    del kept
    Base.registry.dispose()


def changed(session: Session, entity: Any, key: Any, **values: Any) -> None:
    row = session.get_one(entity, key)
    for name, value in values.items():
        setattr(row, name, value)
    session.flush()


def deleted(session: Session, entity: Any, key: Any) -> None:
    session.delete(session.get_one(entity, key))
    session.flush()


def added(session: Session, row: Any) -> None:
    session.add(row)
    session.flush()


Write = Callable[[Session, Classes], object]

#: Each writes only to order 1.  The flush undoes statements sent before it queried the database.
WRITES_REGISTRIES: dict[str, Write] = {
    "header changed": lambda s, c: changed(s, c.order, 1, sum=7),
    "part changed": lambda s, c: changed(s, c.line, 1, order_id=7),
    "part deleted": lambda s, c: deleted(s, c.line, 2),
    "part added": lambda s, c: added(s, c.line(number=91, order=1)),
    "tag added": lambda s, c: added(s, c.tag(order=1, tag=3)),
    "tag deleted": lambda s, c: deleted(s, c.tag, (1, 1)),
    "bulk, header": lambda s, c: s.bulk_update_mappings(
        sa.inspect(c.order), [{"number": 1, "sum": 7}]
    ),
    "bulk, part": lambda s, c: s.bulk_update_mappings(
        sa.inspect(c.line), [{"number": 1, "order_id": 7}]
    ),
    "bulk insert": lambda s, c: s.bulk_insert_mappings(
        sa.inspect(c.line), [{"number": 91, "order": 1}]
    ),
    "bulk save": lambda s, c: s.bulk_save_objects([c.line(number=91, order=1)]),
    "by key": lambda s, c: s.execute(sa.update(c.line), [{"number": 1, "order_id": 7}]),
    "insert of rows": lambda s, c: s.execute(sa.insert(c.line), [{"number": 91, "order": 1}]),
    "insert": lambda s, c: s.execute(sa.insert(c.line).values(number=91, order=1)),
    "update header": lambda s, c: s.execute(sa.update(c.order).filter_by(number=1).values(sum=7)),
    "update part": lambda s, c: s.execute(
        sa.update(c.line).where(c.line.order == 1).values({c.line.order_id: 7})
    ),
    "delete part": lambda s, c: s.execute(sa.delete(c.line).where(c.line.number == 2)),
    "update by a subquery": lambda s, c: s.execute(
        sa.update(c.line)
        .where(
            sa.exists().where(c.order.number == c.line.order, c.order.number == 1),
        )
        .values(order_id=7)
        .execution_options(synchronize_session=False)
    ),
}
each_write = pytest.mark.parametrize("write", WRITES_REGISTRIES.values(), ids=WRITES_REGISTRIES)


@each_write
def test_a_write_needs_the_lock_registries(
    session: Session, classes: Classes, write: Write
) -> None:
    with refused(session, Order, 1, sent_first=True):
        write(session, classes)


@each_write
def test_under_the_lock_it_goes_through_registries(
    session: Session, classes: Classes, write: Write
) -> None:
    held = hold(session, Order, 1)
    with writes_sent(session) as sent:
        write(session, classes)
    session.commit()
    assert sent
    assert held


MOVES: dict[str, Write] = {
    "flush": lambda s, c: changed(s, c.line, 1, order=2),
    "bulk": lambda s, c: s.bulk_update_mappings(sa.inspect(c.line), [{"number": 1, "order": 2}]),
    "by key": lambda s, c: s.execute(sa.update(c.line), [{"number": 1, "order": 2}]),
    "update": lambda s, c: s.execute(sa.update(c.line).filter_by(number=1).values(order=2)),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_part_that_moves_needs_both_locks_registries(
    session: Session, classes: Classes, move: Write
) -> None:
    held = hold(session, Order, 1)
    with refused(session, Order, 2, sent_first=True):
        move(session, classes)
    assert held


NEW: dict[str, Write] = {
    "flush": lambda s, c: added(s, c.order(number=9, sum=1)),
    "bulk": lambda s, c: s.bulk_insert_mappings(sa.inspect(c.order), [{"number": 9, "sum": 1}]),
    "insert": lambda s, c: s.execute(sa.insert(c.order).values(number=9, sum=1)),
}


@pytest.mark.parametrize("create", NEW.values(), ids=NEW)
def test_a_new_header_is_of_this_transaction_registries(
    session: Session, classes: Classes, create: Write
) -> None:
    create(session, classes)
    added(session, classes.line(number=91, order=9))
    changed(session, classes.order, 9, sum=2)
    session.commit()


def test_its_lock_has_the_document_read_again_and_permits_no_write(
    session: Session, make_session: Callable[..., Session], classes: Classes
) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    lines = list(order.lines)
    session.commit()
    with make_session() as other:
        changed_there = hold(other, Order, 1)
        changed_there[0].total, changed_there[0].lines[0].value = 77, 88
        other.commit()
    locked = sa.select(classes.order).where(classes.order.number == 1).with_for_update()
    kept = session.scalars(locked).one()
    assert (order.total, lines[0].value, kept.sum) == (77, 88, 77)
    with refused(session, Order, 1):
        session.execute(sa.update(Order).where(Order.id == 1).values(total=7))


def test_the_lock_of_the_document_has_its_rows_read_again(
    session: Session, make_session: Callable[..., Session], classes: Classes
) -> None:
    session.expire_on_commit = False
    order, line = session.get_one(classes.order, 1), session.get_one(classes.line, 1)
    assert (order.sum, line.order_id) == (30, 10)
    session.commit()
    with make_session() as other:
        changed_there = hold(other, Order, 1)
        changed_there[0].total, changed_there[0].lines[0].value = 77, 88
        other.commit()
    kept = hold(session, Order, 1)
    assert (order.sum, line.order_id) == (77, 88)
    order.sum += 1
    session.commit()
    assert kept


def test_a_lock_refuses_what_was_changed_before_it(session: Session, classes: Classes) -> None:
    order, line = session.get_one(classes.order, 1), session.get_one(classes.line, 1)
    order.sum += 1
    with session.no_autoflush, pytest.raises(UnsavedChanges, match="OtherOrder"):
        hold(session, Order, 1)
    hold(session, Order, 2)
    session.refresh(order)
    line.order_id += 1
    with session.no_autoflush, pytest.raises(UnsavedChanges, match="OtherLine"):
        hold(session, Order, 1)


def test_a_schema_is_the_one_to_which_the_map_leads(engine: sa.Engine) -> None:
    """The document is mapped in a symbolic schema, and another Table names the real one."""

    class Base(DeclarativeBase):
        metadata = sa.MetaData(schema="per_tenant")

    @document
    class Bill(Base):
        __tablename__ = "gd_bill"
        id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
        total: Mapped[int]

    class OtherBill(DeclarativeBase):
        """Mapped in the real schema by another registry."""

        __abstract__ = True

    with engine.connect() as connection:
        schema = connection.dialect.default_schema_name
    here = engine.execution_options(schema_translate_map={"per_tenant": schema})
    Base.metadata.create_all(here)
    bills = Base.metadata.tables["per_tenant.gd_bill"].to_metadata(
        sa.MetaData(), schema=str(schema)
    )
    other: Any = type("RealBill", (OtherBill,), {"__table__": bills})
    elsewhere = bills.to_metadata(sa.MetaData(), schema="elsewhere")
    try:
        with LockingSession(here, expire_on_commit=False) as session:
            session.add(bill := Bill(id=1, total=1))
            session.commit()
            for table in bills, light(bills, str(schema)):
                with refused(session, Bill, 1):
                    session.execute(sa.update(table).where(table.c.id == 1).values(total=2))
            with refused(session, Bill, 1, sent_first=True):
                changed(session, other, 1, total=2)
            session.rollback()
            with here.begin() as connection:
                connection.execute(sa.update(bills).values(total=7))
            seen = session.get_one(other, 1)
            session.execute(sa.select(bills.c.id).with_for_update()).one()
            assert (bill.total, seen.total) == (7, 7)
            session.execute(sa.update(bills).where(bills.c.id == 1).values(total=8))
            with pytest.raises(DBAPIError):  # the database has no such schema
                session.execute(sa.update(elsewhere).values(total=2))
    finally:
        Base.metadata.drop_all(here)
        OtherBill.registry.dispose()
        Base.registry.dispose()
