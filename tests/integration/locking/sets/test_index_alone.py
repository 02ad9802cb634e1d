"""MySQL and MariaDB: a shared lock covers the rows, even if an index has all columns read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    DeclarativeBase,
    InstrumentedAttribute,
    Mapped,
    Session,
    aliased,
    mapped_column,
)

from sa_doclock import LockingSession, LockNotAvailable, LockNotSupported, LockOptions, with_lock
from tests.integration.locking.steps import finds_held, recorded
from tests.support.databases import Database

SHARED, NoWait, SkipLocked = LockOptions.SharedRead, LockOptions.NoWait, LockOptions.SkipLocked


class Base(DeclarativeBase):
    """Tables of this file."""


class Cart(Base):
    """A header whose columns are all in one index."""

    __tablename__ = "lk_cart"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[int] = mapped_column(index=True)


class Note(Base):
    """A header read through the columns of an index, because its text is deferred."""

    __tablename__ = "lk_note"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[int] = mapped_column(unique=True)
    text: Mapped[str] = mapped_column(sa.String(40), default="", deferred=True)


class Shape(Base):
    """A header whose row spans two tables; all but one of its own columns are in an index."""

    __tablename__ = "lk_shape"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[int] = mapped_column(index=True)
    total: Mapped[int] = mapped_column(default=0)


class Circle(Shape):
    """A shape with a part of its row in a second table."""

    __tablename__ = "lk_circle"
    id: Mapped[int] = mapped_column(sa.ForeignKey(Shape.id), primary_key=True, autoincrement=False)
    radius: Mapped[int] = mapped_column(default=0)


class Part(Base):
    """A header whose own columns are all in an index; its subclass has others."""

    __tablename__ = "lk_part"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    owner: Mapped[int] = mapped_column(index=True)


class Wheel(Part):
    """A part with one more column."""

    spokes: Mapped[int] = mapped_column(default=0, nullable=True)


ALIAS: Any = aliased(Note)
SHAPE: Any = aliased(Shape)

SETS: dict[str, Callable[[LockingSession], sa.Select[Any]]] = {
    "all": lambda session: session.entity_set(Cart, SHARED),
    "by the index": lambda session: session.entity_set(Cart, SHARED).where(Cart.owner == 1),
    "ordered": lambda session: session.entity_set(Note, SHARED).order_by(Note.owner),
    "a key": lambda _: with_lock(sa.select(Cart.id).where(Cart.owner == 1), SHARED),
    "an alias": lambda _: with_lock(sa.select(ALIAS).where(ALIAS.owner == 1), SHARED),
    "a join": lambda session: (
        session.entity_set(Shape, SHARED).join(Cart, Cart.id == Shape.id).where(Shape.owner == 1)
    ),
    "a join of an alias": lambda _: with_lock(
        sa.select(SHAPE).join(Cart, Cart.id == SHAPE.id).where(SHAPE.owner == 1), SHARED
    ),
    "a join that skips": lambda session: (
        session.entity_set(Shape, SHARED | LockOptions.SkipLocked)
        .join(Cart, Cart.id == Shape.id)
        .where(Shape.owner == 1)
    ),
    "a join of an index": lambda session: (
        session.entity_set(Cart, SHARED).join(Note, Note.id == Cart.id).where(Cart.owner == 1)
    ),
    "a column": lambda _: with_lock(sa.select(Shape.owner).where(Shape.owner == 1), SHARED),
    "a class in two tables": lambda session: session.entity_set(Circle, SHARED),
}
ENTITIES: dict[str, type[Any]] = {
    "ordered": Note,
    "an alias": Note,
    "a join": Shape,
    "a join of an alias": Shape,
    "a join that skips": Shape,
    "a column": Shape,
    "a class in two tables": Circle,
}


@pytest.fixture
def carts(engine: sa.Engine, database: Database) -> None:
    """Create the tables, each with some rows."""
    database.create(Base.metadata)
    with engine.begin() as connection:
        for table in Base.metadata.sorted_tables:
            rows = [{"id": number, "owner": number} for number in range(1, 30)]
            if "owner" not in table.columns:
                rows = [{"id": row["id"]} for row in rows]
            connection.execute(sa.insert(table), rows)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
@pytest.mark.parametrize("name", SETS)
def test_the_row_is_locked(session: LockingSession, other: LockingSession, name: str) -> None:
    statement = SETS[name](session)
    assert session.execute(statement).all()
    entity = ENTITIES.get(name, Cart)
    assert finds_held(entity)(other)
    assert not finds_held(entity, lock=SHARED)(other)
    session.rollback()
    assert not finds_held(entity)(other)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
@pytest.mark.parametrize("name", ["ordered", "an alias", "a column"])
def test_one_column_more_is_read_in_the_same_statement(
    session: LockingSession, engine: sa.Engine, name: str
) -> None:
    statement = SETS[name](session)
    with recorded(engine) as sent:
        rows = session.execute(statement).all()
    assert len(sent) == 1
    assert {len(row) for row in rows} == {1}


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
def test_none_is_skipped_by_an_index_alone(session: LockingSession) -> None:
    skipping = session.entity_set(Cart, SHARED | LockOptions.SkipLocked)
    with pytest.raises(LockNotSupported, match="are all in an index"):
        session.scalars(skipping.where(Cart.owner < 9).limit(2)).all()


BY_INDEX: dict[str, sa.Select[Any]] = {
    "a class": sa.select(Cart).where(Cart.owner == 1),
    "a key": sa.select(Cart.id).where(Cart.owner == 1),
    "a column of the table": sa.select(Cart.__table__.c.id).where(Cart.owner == 1),
    "a deferred column": sa.select(Note).where(Note.owner == 1),
}


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
@pytest.mark.parametrize("name", BY_INDEX)
def test_with_for_update_of_an_index_is_not_listed(
    session: LockingSession, other: LockingSession, name: str
) -> None:
    """The server locks the index entry, and grants another session a ForUpdate of the row."""
    entity = Note if "deferred" in name else Cart
    session.execute(BY_INDEX[name].with_for_update(read=True)).all()
    assert not session.held_locks
    assert not finds_held(entity)(other)
    session.get_one_entity(entity, 1, SHARED)
    assert finds_held(entity)(other)
    session.rollback()
    session.execute(BY_INDEX[name].with_for_update()).all()
    assert (entity, (1,)) in session.held_locks
    assert finds_held(entity)(other)


LISTED: dict[str, Any] = {
    "all columns": sa.select(Shape.__table__).where(Shape.owner == 1),
    "a column that no index has": sa.select(Shape.id, Shape.total).where(Shape.owner == 1),
    "of an alias": sa.select(SHAPE.id, SHAPE.total).where(SHAPE.owner == 1),
    "of a class in one table": sa.select(Wheel).where(Wheel.owner == 1),
    "the key by the key": sa.select(Shape.id).where(Shape.id == 1),
    "the key by the key of an alias": sa.select(SHAPE.id).where(SHAPE.id == 1),
    "a column of the table by the key": sa.select(Shape.__table__.c.id).where(Shape.id == 1),
}


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
@pytest.mark.parametrize("name", LISTED)
def test_with_for_update_of_more_than_an_index_is_listed(
    session: LockingSession, other: LockingSession, name: str
) -> None:
    entity = Part if "one table" in name else Shape
    session.execute(LISTED[name].with_for_update(read=True)).all()
    assert (entity, (1,)) in session.held_locks
    assert finds_held(entity)(other)


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
def test_the_columns_of_another_alias_do_not_count(
    session: LockingSession,
) -> None:
    joined = sa.select(Shape.id, SHAPE.total).join(SHAPE, SHAPE.id == Shape.id + 1)
    session.execute(joined.where(Shape.owner == 1).with_for_update(read=True)).all()
    assert (Shape, (1,)) not in session.held_locks


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.read_committed
@pytest.mark.usefixtures("carts")
def test_a_row_that_is_got_by_its_key_is_listed(
    session: LockingSession, other: LockingSession
) -> None:
    cart = session.get(Cart, 1, with_for_update={"read": True})
    assert cart
    assert (Cart, (1,)) in session.held_locks
    assert finds_held(Cart)(other)
    session.rollback()
    session.refresh(cart, with_for_update={"read": True})
    assert (Cart, (1,)) in session.held_locks
    assert finds_held(Cart)(other)


# --------------------------------------------------------------------------------------------------
# Without a suitable index, InnoDB locks more rows than PostgreSQL, and why.
#
# The library cannot add an index: these facts explain the warnings in docs/mysql.md.

ForUpdate = LockOptions.ForUpdate


class IndexesSetsBase(DeclarativeBase):
    pass


class Task(IndexesSetsBase):
    __tablename__ = "lk_task"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    indexed: Mapped[int] = mapped_column(index=True)
    other: Mapped[int]


@pytest.fixture
def tasks(database: Database, engine: sa.Engine) -> None:
    """Insert enough tasks that MySQL reads the index: with 200 it reads the whole table instead."""
    database.create(IndexesSetsBase.metadata)
    rows = [{"id": n, "indexed": n, "other": n} for n in range(1, 2_001)]
    with engine.begin() as connection:
        connection.execute(sa.insert(Task), rows)
    if database.name != "postgresql":
        with database.observer().connect() as connection:
            connection.exec_driver_sql("ANALYZE TABLE lk_task").all()


def first(session: LockingSession, column: InstrumentedAttribute[int]) -> list[int]:
    """Lock the first task, in this order, that no other session holds."""
    query = session.entity_set(Task, ForUpdate | SkipLocked).order_by(column).limit(1)
    return [task.id for task in session.scalars(query)]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
def test_the_second_worker_gets_the_next_where_an_index_gives_the_order(
    session: LockingSession, other: LockingSession
) -> None:
    assert first(session, Task.indexed) == [1]
    assert first(other, Task.indexed) == [2]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
def test_without_an_index_the_first_worker_locks_all_candidates_on_innodb(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    assert first(session, Task.other) == [1]
    assert first(other, Task.other) == ([2] if database.name == "postgresql" else [])


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
def test_a_condition_with_an_index_meets_its_own_rows_alone(
    session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Task, 20, ForUpdate)
    query = session.entity_set(Task, ForUpdate | NoWait).where(Task.indexed == 1)
    assert [task.id for task in session.scalars(query)] == [1]


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
def test_a_condition_without_an_index_meets_every_row_on_innodb(
    database: Database, session: LockingSession, other: LockingSession
) -> None:
    other.get_one_entity(Task, 20, ForUpdate)
    query = session.entity_set(Task, ForUpdate | NoWait).where(Task.other == 1)
    if database.name == "postgresql":
        assert [task.id for task in session.scalars(query)] == [1]
    else:
        with pytest.raises(LockNotAvailable):
            session.scalars(query)


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
def test_it_keeps_only_its_own_rows(session: LockingSession, other: LockingSession) -> None:
    task = session.scalars(session.entity_set(Task, ForUpdate).where(Task.other == 1)).one()
    assert finds_held(Task, 1)(other)
    assert not finds_held(Task, 20)(other)
    assert task


@pytest.mark.databases("postgresql", "mysql", "mariadb")
@pytest.mark.usefixtures("tasks")
@pytest.mark.databases("mysql", "mariadb")
def test_at_repeatable_read_it_would_keep_the_table(
    make_engine: Callable[..., sa.Engine], other: LockingSession
) -> None:
    with Session(make_engine(isolation_level="REPEATABLE READ")) as plain:
        query: sa.Select[Any] = sa.select(Task).where(Task.other == 1).with_for_update()
        task = plain.scalars(query).one()
        assert finds_held(Task, 20)(other)
        assert task
