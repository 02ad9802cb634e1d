"""A locking set returns the same Result as its statement in a plain Session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.orm import Bundle, Session, contains_eager, subqueryload

from sa_doclock import LockingSession, LockNotSupported, LockOptions, with_lock
from tests.integration.locking.steps import finds_held, recorded
from tests.support.actors import Actor
from tests.support.models import Invoice, Line, Order
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.quick

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
_lines = (
    sa.select(Order)
    .join(Order.lines)
    .options(contains_eager(Order.lines))
    .order_by(Order.id, Line.id)
)

STATEMENTS: dict[str, Any] = {
    "an entity": sa.select(Order).order_by(Order.id),
    "an entity and its lines": _lines,
    "with a column": _lines.add_columns(Line.value),
    "two entities": sa.select(Order, Line).join(Order.lines).order_by(Line.id),
    "two entities and its lines": _lines.add_columns(Line),
    "columns": sa.select(Order.id, Order.total.label("sum")).order_by(Order.id),
    "an entity with a joined one": sa.select(Invoice).order_by(Invoice.id),
    "a bundle": sa.select(Bundle("b", Order.id, Order.total)).order_by(Order.id),
}
READS: dict[str, Callable[[Any], Any]] = {
    "all": lambda result: result.all(),
    "unique": lambda result: result.unique().all(),
    "unique by key": lambda result: result.unique(str).all(),
    "scalars": lambda result: result.scalars().all(),
    "unique scalars": lambda result: result.scalars().unique().all(),
    "unique, then scalars": lambda result: result.unique().scalars().all(),
    "first": lambda result: result.unique().first(),
    "mappings": lambda result: result.unique().mappings().all(),
    "columns": lambda result: result.unique().columns(0).all(),
    "partitions": lambda result: [list(part) for part in result.unique().partitions(2)],
    "keys": lambda result: list(result.keys()),
    "one": lambda result: result.one(),
}


def _seen(result: Any, read: Callable[[Any], Any]) -> str:
    """Return the result of the read, as text; or the class of its error."""
    try:
        return _in_words(read(result))
    except (InvalidRequestError, sa.exc.ArgumentError) as error:
        return type(error).__name__


def _in_words(found: Any) -> str:
    if isinstance(found, sa.Row):
        return f"Row{[_in_words(one) for one in found]}"
    if isinstance(found, (list, tuple)):
        return str([_in_words(one) for one in found])
    if isinstance(found, sa.RowMapping):
        return f"mapping of {[(key, _in_words(value)) for key, value in found.items()]}"
    if isinstance(found, (Order, Invoice, Line)):
        return f"{type(found).__name__} {found.id}"
    return str(found)


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
def test_it_is_read_in_every_way(session: LockingSession, name: str, lock: LockOptions) -> None:
    statement = STATEMENTS[name]
    locked = with_lock(statement, lock, None if name == "an entity with a joined one" else Order)
    for how, read in READS.items():
        with Session(session.get_bind()) as plain:
            expected = _seen(plain.execute(statement), read)
        with LockingSession(session.get_bind()) as locking:
            assert _seen(locking.execute(locked), read) == expected, how


def test_what_was_joined_is_loaded(session: LockingSession) -> None:
    locked = with_lock(_lines.where(Order.id == 1), ForUpdate)
    with pytest.raises(InvalidRequestError, match="unique"):
        session.scalars(locked).all()
    order = session.scalars(locked).unique().one()
    assert [line.value for line in order.lines] == [10, 20]
    assert list(session.held_locks) == [(Order, (1,))]


# --------------------------------------------------------------------------------------------------
# ORDER BY and LIMIT of a set that waited on PostgreSQL, as its documentation page describes.


@pytest.mark.databases("postgresql")
def test_the_order_is_that_of_before_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 2, ForUpdate).total = 100
        session.flush()

    def ordered(session: LockingSession) -> list[tuple[int, int]]:
        statement = session.entity_set(Order, ForUpdate).order_by(Order.total)
        return [(order.id, order.total) for order in session.scalars(statement)]

    alice.does(change)
    step = bob.starts(ordered)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [(2, 100), (1, 30)]


@pytest.mark.databases("postgresql")
def test_limit_counts_in_the_order_of_before_the_wait(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    def change(session: LockingSession) -> None:
        session.get_one_entity(Order, 2, ForUpdate).total = 100
        session.flush()

    def first(session: LockingSession) -> list[int]:
        statement = session.entity_set(Order, ForUpdate).order_by(Order.total).limit(1)
        return [order.id for order in session.scalars(statement)]

    alice.does(change)
    step = bob.starts(first)
    wait_until_blocked(waiter=bob, holder=alice, step=step)
    alice.does(lambda session: session.save_changes())
    assert step.result() == [2]  # order 1 now sorts first


# --------------------------------------------------------------------------------------------------
# SQLAlchemy's own with_for_update() on a set: why the library refuses or avoids it.

REFUSED: Mapping[str, Any] = {
    "DISTINCT": sa.select(Order).distinct(),
    "GROUP BY": sa.select(Order.total).group_by(Order.total),
    "an aggregate": sa.select(sa.func.count(Order.id)),
    "a window": sa.select(Order, sa.func.row_number().over(order_by=Order.id)),
    "the optional side": sa.select(Line, Order).outerjoin(Line.order),
}


@pytest.mark.databases("postgresql")
def test_postgresql_refuses_what_is_no_row_of_a_table(engine: sa.Engine) -> None:
    union = "SELECT id FROM lk_order UNION SELECT id FROM lk_order FOR UPDATE"
    refused: dict[str, sa.Executable] = {"UNION": sa.text(union)}
    refused |= {name: query.with_for_update(of=Order) for name, query in REFUSED.items()}
    for name, query in refused.items():
        with Session(engine) as plain, pytest.raises(DBAPIError) as caught:
            plain.execute(query)
        assert getattr(caught.value.orig, "sqlstate", None) == "0A000", name


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("name", REFUSED)
def test_so_does_the_library(session: LockingSession, name: str) -> None:
    with pytest.raises(LockNotSupported):
        session.execute(with_lock(REFUSED[name], ForUpdate, Order))


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_joined_row_is_locked_along_where_there_is_no_of(
    engine: sa.Engine, other: LockingSession
) -> None:
    query = sa.select(Order).join(Order.lines).where(Line.id == 2).with_for_update(of=Order)
    with Session(engine) as plain:
        order = plain.scalars(query).one()
        no_of = "mariadb" if getattr(engine.dialect, "is_mariadb", False) else engine.dialect.name
        assert finds_held(Line, 2)(other) is (no_of == "mariadb")
        assert order


@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_subqueryload_repeats_the_lock(engine: sa.Engine) -> None:
    query = sa.select(Order).options(subqueryload(Order.lines)).with_for_update()
    with Session(engine) as plain, recorded(engine) as statements:
        plain.scalars(query).all()
    assert len([text for text in statements if "FOR UPDATE" in text]) == 2
