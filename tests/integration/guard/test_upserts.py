"""An INSERT that may update an existing row, under the lock of its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from sa_doclock import LockingSession, UnlockedWrite, document
from tests.integration.guard.models import Customer, Line, Order
from tests.integration.guard.steps import hold, refused
from tests.integration.guard.test_between import before_the_write
from tests.support.databases import Database

pytestmark = pytest.mark.quick  # has no such INSERT


Upsert = Callable[..., Any]


class Base(DeclarativeBase):
    """The tables of this file."""


@document(parts=("items",))
class Basket(Base):
    __tablename__ = "up_basket"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    total: Mapped[int] = mapped_column(default=0)
    items: Mapped[list[Item]] = relationship(order_by="Item.sku")


class Item(Base):
    """A part with a natural key in its document, and a number that the database generates."""

    __tablename__ = "up_item"
    __table_args__ = (sa.UniqueConstraint("basket_no", "sku", name="up_item_key"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    basket_id: Mapped[int] = mapped_column("basket_no", sa.ForeignKey("up_basket.id"))
    sku: Mapped[str] = mapped_column(sa.String(10))
    quantity: Mapped[int]


@pytest.fixture
def session_upserts(database: Database) -> Iterator[LockingSession]:
    """Return a session on tables with two baskets of one item each."""
    database.create(Base.metadata)
    engine = database.engine()
    with engine.begin() as connection:
        connection.execute(sa.insert(Basket), [{"id": 1, "total": 1}, {"id": 2, "total": 2}])
        rows = [{"basket_no": n, "sku": "pen", "quantity": n} for n in (1, 2)]
        connection.execute(sa.insert(Item.__table__), rows)  # type: ignore[arg-type]
    with LockingSession(engine) as session:
        yield session


@pytest.fixture
def upsert(database: Database) -> Upsert:
    """Make ``INSERT .. ON CONFLICT (columns) DO UPDATE SET ..``, or MySQL's form of it."""

    def make(entity: Any, row: dict[str, Any], columns: Any, **sets: Any) -> Any:
        if database.name in ("mysql", "mariadb"):
            statement: Any = mysql.insert(entity).values(row)
            return statement.on_duplicate_key_update(
                {key: of(statement.inserted) if callable(of) else of for key, of in sets.items()}
            )
        module: Any = postgresql if database.name == "postgresql" else sqlite
        statement = module.insert(entity).values(row)
        sets = {key: of(statement.excluded) if callable(of) else of for key, of in sets.items()}
        how = "constraint" if isinstance(columns, str) else "index_elements"
        return statement.on_conflict_do_update(**{how: columns}, set_=sets)

    return make


KEY = ["basket_no", "sku"]


def item(basket: int, quantity: int = 7, **more: Any) -> dict[str, Any]:
    return {"basket_id": basket, "sku": "pen", "quantity": quantity, **more}


def quantities(session: LockingSession) -> list[tuple[Any, ...]]:
    rows = session.execute(
        sa.select(Item.basket_id, Item.quantity).order_by(Item.basket_id, Item.id)
    )
    return [tuple(row) for row in rows]


@pytest.mark.not_databases("mssql")
def test_a_part_of_a_held_document_is_updated(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    held = hold(session_upserts, Basket, 1)
    session_upserts.execute(upsert(Item, item(1), KEY, quantity=lambda new: new.quantity))
    session_upserts.execute(
        upsert(Item, item(1, sku="ink"), KEY, quantity=9, basket_no=lambda new: new.basket_no)
    )
    session_upserts.save_changes()
    assert held
    assert quantities(session_upserts) == [(1, 7), (1, 7), (2, 2)]


@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize("entity", [Item, Item.__table__], ids=["class", "table"])
def test_a_row_may_keep_its_own_value(
    session_upserts: LockingSession, upsert: Upsert, entity: Any
) -> None:
    held, of_row = hold(session_upserts, Basket, 1), Item.__table__.c.basket_no
    row = {"basket_no" if entity is not Item else "basket_id": 1, "sku": "pen", "quantity": 7}
    session_upserts.execute(upsert(entity, row, KEY, quantity=9, basket_no=of_row))
    assert held
    assert quantities(session_upserts) == [(1, 9), (2, 2)]


@pytest.mark.not_databases("mssql")
def test_a_list_of_rows_is_checked_one_by_one(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    statement = upsert(Item.__table__, item(1), KEY, quantity=9)
    with refused(session_upserts, Basket, 2, "inserted"):
        held = hold(session_upserts, Basket, 1)
        session_upserts.execute(
            statement,
            [{"basket_no": n, "sku": "pen", "quantity": 7} for n in (1, 2)],
        )
    assert held


@pytest.mark.not_databases("mssql")
def test_a_part_of_a_document_that_is_not_held_is_not(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    with refused(session_upserts, Basket, 1, "inserted"):
        session_upserts.execute(upsert(Item, item(1), KEY, quantity=9))


@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize(
    ("columns", "more", "sets"),
    [
        (KEY, {}, {"basket_no": 2}),
        (KEY, {}, {"basket_no": lambda new: new.quantity}),
        (KEY, {}, {"basket_no": sa.text("basket_no + 1")}),
        (["id"], {"id": 2}, {"basket_no": lambda new: new.basket_no}),
    ],
    ids=["moved", "moved by a column", "moved by text", "moved from where its key is"],
)
def test_a_row_that_may_be_of_another_document_is_refused(
    session_upserts: LockingSession, upsert: Upsert, columns: Any, more: Any, sets: Any
) -> None:
    with refused(session_upserts, Basket, None, "may overwrite"):
        held = hold(session_upserts, Basket, 1)
        session_upserts.execute(upsert(Item, item(1, **more), columns, **sets))
    assert held


@pytest.mark.not_databases("mssql")
def test_a_row_that_is_found_by_another_key_is_of_the_document_that_it_has(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    held = hold(session_upserts, Basket, 1)
    session_upserts.execute(upsert(Item, item(1, id=1), ["id"], quantity=9))
    assert quantities(session_upserts) == [(1, 9), (2, 2)]
    session_upserts.execute(upsert(Item, item(1, id=5, sku="ink"), ["id"], quantity=9))
    with refused(session_upserts, Basket, 2, "inserted"):
        session_upserts.execute(upsert(Item, item(1, id=2, sku="cap"), ["id"], quantity=9))
    session_upserts.save_changes()
    assert held
    assert quantities(session_upserts) == [(1, 9), (1, 7), (2, 2)]


@pytest.mark.not_databases("mssql")
@pytest.mark.not_databases("sqlite", "sqlite-journal", "mssql")  # no session gets past its lock
def test_a_row_that_another_adds_meanwhile_is_not_updated(
    session_upserts: LockingSession, upsert: Upsert, database: Database
) -> None:
    held = hold(session_upserts, Basket, 1)
    statement = upsert(Item, item(1, id=9, sku="ink"), ["id"], quantity=9)
    comes = sa.insert(Item).values(id=9, basket_id=2, sku="cap", quantity=3)
    with before_the_write(session_upserts, database, comes), pytest.raises(UnlockedWrite):
        session_upserts.execute(statement)
    with pytest.raises(PendingRollbackError):
        session_upserts.commit()
    session_upserts.rollback()
    assert quantities(session_upserts) == [(1, 1), (2, 2), (2, 3)]
    assert held


@pytest.mark.not_databases("mssql")
@pytest.mark.databases("postgresql")
def test_a_conflict_may_be_given_by_its_constraint(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    with refused(session_upserts, Basket, None, "may overwrite"):
        session_upserts.execute(upsert(Item, item(1), "unknown", quantity=9))
    session_upserts.rollback()
    held = hold(session_upserts, Basket, 1)
    session_upserts.execute(upsert(Item, item(1), "up_item_key", quantity=9))
    session_upserts.save_changes()
    assert held
    assert quantities(session_upserts) == [(1, 9), (2, 2)]


@pytest.mark.not_databases("mssql")
@pytest.mark.databases("postgresql", "sqlite")
def test_an_index_of_expressions_is_refused(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    with refused(session_upserts, Basket, None, "may overwrite"):
        held = hold(session_upserts, Basket, 1)
        session_upserts.execute(upsert(Item, item(1), [sa.func.lower(Item.sku)], quantity=9))
    assert held


@pytest.mark.not_databases("mssql")
def test_a_header_is_updated_where_it_is_held(
    session_upserts: LockingSession, upsert: Upsert
) -> None:
    held = hold(session_upserts, Basket, 1)
    session_upserts.execute(upsert(Basket, {"id": 1, "total": 5}, ["id"], total=5))
    with refused(session_upserts, Basket, 2, "inserted"):
        session_upserts.execute(upsert(Basket, {"id": 2, "total": 5}, ["id"], total=5))
    with refused(session_upserts, Basket, None, "may overwrite"):
        session_upserts.execute(upsert(Basket, {"id": 1, "total": 5}, ["id"], id=3))
    session_upserts.save_changes()
    assert held
    found = session_upserts.execute(sa.select(Basket.id, Basket.total).order_by(Basket.id))
    assert [tuple(row) for row in found] == [(1, 5), (2, 2)]


# --------------------------------------------------------------------------------------------------
# INSERT statements for rows that might already exist.

LINES: Any = Line.__table__


def overwriting(session: LockingSession, entity: Any, what: dict[str, Any], **row: Any) -> Any:
    name = session.get_bind().dialect.name
    if name in ("mysql", "mariadb"):
        return mysql.insert(entity).values(**row, **what).on_duplicate_key_update(**what)
    module: Any = postgresql if name == "postgresql" else sqlite
    statement = module.insert(entity).values(**row, **what)
    return statement.on_conflict_do_update(index_elements=["id"], set_=what)


def doing_nothing(session: LockingSession, entity: Any, **values: Any) -> Any:
    name = session.get_bind().dialect.name
    if name in ("mysql", "mariadb"):
        return sa.insert(entity).prefix_with("IGNORE").values(**values)
    module: Any = postgresql if name == "postgresql" else sqlite
    return module.insert(entity).values(**values).on_conflict_do_nothing()


def test_an_insert_that_may_overwrite_is_refused(session: LockingSession) -> None:
    with refused(session, Order, 1, "inserted"):
        session.execute(overwriting(session, Order, {"total": 31}, id=1))
    with refused(session, Order, 1, "inserted"):  # refused because of the existing row
        session.execute(overwriting(session, LINES, {"value": 31}, id=1, order_no=1))


@pytest.mark.not_databases("mssql")  # has no such INSERT
def test_a_row_that_was_there_already_is_no_new_document(session: LockingSession) -> None:
    session.execute(doing_nothing(session, Order, id=1, total=7))
    order = session.get_one(Order, 1)
    assert order.total == 30
    order.total = 31
    with refused(session, Order, 1, "'total'"):
        session.flush()


@pytest.mark.not_databases("mssql")  # has no such INSERT
def test_a_part_that_may_be_there_already_is_added_under_the_lock(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(doing_nothing(session, LINES, id=9, order_no=1, value=0))
    held = hold(session, Order, 1)
    session.execute(doing_nothing(session, LINES, id=9, order_no=1, value=0))
    session.commit()
    assert held


@pytest.mark.databases("sqlite", "sqlite-journal")
def test_insert_or_replace_may_overwrite(session: LockingSession) -> None:
    statement = sa.insert(Customer).prefix_with("OR REPLACE").values(id=1, name="Anna")
    session.execute(statement)  # not declared
    with pytest.raises(UnlockedWrite):
        session.execute(sa.insert(Order).prefix_with("OR REPLACE").values(id=1, total=31))
