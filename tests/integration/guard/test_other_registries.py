"""Writes through classes of another registry, which map the tables of a document by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_doclock import LockingSession, UnsavedChanges
from tests.integration.guard.models import Order
from tests.integration.guard.steps import hold, refused, writes_sent

pytestmark = pytest.mark.quick

Session = LockingSession


class Classes(NamedTuple):
    """Classes on the tables of orders, lines and tags of orders."""

    order: Any
    line: Any
    tag: Any


@pytest.fixture(params=["no schema", "the default schema"])
def classes(request: pytest.FixtureRequest, session: Session) -> Iterator[Classes]:
    """Map the tables once more; the names in Python are others, and some of those of other columns."""
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

#: Each writes to order 1 alone.  The flush takes back what was sent before the database was asked.
WRITES: dict[str, Write] = {
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
each_write = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


@each_write
def test_a_write_needs_the_lock(session: Session, classes: Classes, write: Write) -> None:
    with refused(session, Order, 1, sent_first=True):
        write(session, classes)


@each_write
def test_under_the_lock_it_goes_through(session: Session, classes: Classes, write: Write) -> None:
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
def test_a_part_that_moves_needs_both_locks(
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
def test_a_new_header_is_of_this_transaction(
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
