"""with_for_update() of another object for a mapped table: the table is known by its schema and name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, UnsavedChanges
from tests.integration.locking.steps import FIRST, TEN_MORE, add_ten, seen
from tests.support.models import Order

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

Session = LockingSession
Make = Callable[[Session], Any]
ORDERS: Any = Order.__table__


def light(_: Session, schema: str | None = None) -> Any:
    return sa.table(ORDERS.name, *(sa.column(one.name) for one in ORDERS.columns), schema=schema)


def schema_of(session: Session) -> str:
    return str(session.connection().dialect.default_schema_name)


OBJECTS: dict[str, Make] = {
    "to_metadata()": lambda _: ORDERS.to_metadata(sa.MetaData()),
    "reflected": lambda s: sa.Table(ORDERS.name, sa.MetaData(), autoload_with=s.connection()),
    "table()": light,
    "the default schema": lambda s: light(s, schema_of(s)),
    "of this MetaData": lambda s: sa.Table(
        ORDERS.name, ORDERS.metadata, sa.Column("id", sa.Integer), schema=schema_of(s)
    ),
    "alias": lambda s: light(s).alias("o"),
}


@pytest.fixture(params=list(OBJECTS.values()), ids=list(OBJECTS))
def orders(request: pytest.FixtureRequest, session: Session) -> Iterator[Any]:
    """Make another object for the table of orders."""
    made = request.param(session)
    session.commit()
    yield made
    if isinstance(made, sa.Table) and made.metadata is ORDERS.metadata:
        ORDERS.metadata.remove(made)


def test_no_update_is_lost(session: Session, other: Session, orders: Any) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    lines = list(order.lines)
    assert seen(order) == FIRST
    session.commit()
    add_ten(other)
    other.commit()
    session.execute(sa.select(orders.c.id).where(orders.c.id == 1).with_for_update()).all()
    assert (Order, (1,)) in session.held_locks
    assert seen(order) == TEN_MORE
    assert lines


def test_a_pending_change_is_refused(session: Session, orders: Any) -> None:
    statement = sa.select(orders.c.id).where(orders.c.id == 1).with_for_update()
    session.get_one(Order, 1).total = 1
    with session.no_autoflush, pytest.raises(UnsavedChanges):
        session.execute(statement)


def _constant(orders: Any) -> Any:
    return sa.select(sa.literal(1)).select_from(orders).where(orders.c.id == 1).with_for_update()


def _locked(orders: Any) -> Any:
    return sa.select(orders).where(orders.c.id == 1).with_for_update()


WITHOUT_KEY: dict[str, Callable[[Any], Any]] = {
    "a constant": _constant,
    "EXISTS": lambda orders: sa.select(_locked(orders).exists()),
    "a subquery": lambda orders: sa.select(_locked(orders).subquery()),
}


@pytest.mark.parametrize("make", WITHOUT_KEY.values(), ids=WITHOUT_KEY)
def test_without_the_key_the_objects_are_read_again(
    session: Session, other: Session, orders: Any, make: Callable[[Any], Any]
) -> None:
    order = session.get_one(Order, 1)
    assert seen(order) == FIRST
    add_ten(other)
    other.commit()
    session.execute(make(orders)).all()
    assert not session.held_locks
    assert order.total == TEN_MORE[0]


@pytest.fixture
def elsewhere_engine(tmp_path: Path) -> Iterator[Any]:
    """Make another database that has a table of this name, with other columns."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'elsewhere.db'}")
    table = sa.Table(ORDERS.name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    with engine.begin() as connection:
        table.create(connection)
        connection.execute(sa.insert(table).values(id=1))
    yield engine, table
    engine.dispose()


def test_a_table_of_this_name_in_another_database_is_not_the_class(
    session: Session, elsewhere_engine: Any
) -> None:
    there, table = elsewhere_engine
    statement = sa.select(table.c.id).with_for_update()
    with Session(there) as alone:
        assert alone.execute(statement).all()
        assert (Order, (1,)) not in alone.held_locks
    with Session(binds={Order: session.get_bind(), table: there}) as both:
        assert both.execute(statement).all()
        assert (Order, (1,)) not in both.held_locks
