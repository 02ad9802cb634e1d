"""The ledger lists a key only if its statement locked the row, as another session verifies.

The tables have indexes through which a statement could lock an entry instead of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import (
    Bundle,
    DeclarativeBase,
    Mapped,
    Session,
    aliased,
    load_only,
    mapped_column,
    relationship,
    sessionmaker,
)
from sqlalchemy.sql.compiler import SQLCompiler

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    claim_each,
    with_lock,
)
from sa_doclock import with_lock as locked_select
from tests.integration.locking.steps import finds_held
from tests.support.databases import Database
from tests.support.models import Line, Order
from tests.support.rows import rows

FOR_UPDATE, SHARED, SKIP = LockOptions.ForUpdate, LockOptions.SharedRead, LockOptions.SkipLocked


class Base(DeclarativeBase):
    """Tables of this file."""


class Ware(Base):
    """A header with a secondary index, and an index on some of its columns."""

    __tablename__ = "ew_ware"
    __table_args__ = (sa.Index("ew_ware_some", "state", "total"),)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[int] = mapped_column(index=True)
    total: Mapped[int] = mapped_column(default=0)
    text: Mapped[str] = mapped_column(sa.String(40), default="", deferred=True)
    pieces: Mapped[list[Piece]] = relationship()


class Piece(Base):
    """A detail; through its foreign key a join can leave out the header."""

    __tablename__ = "ew_piece"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    ware_id: Mapped[int] = mapped_column(sa.ForeignKey("ew_ware.id"), index=True)


class Task(Base):
    """A header whose columns are all in one index."""

    __tablename__ = "ew_task"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[int] = mapped_column(index=True)


Act = Callable[[Any, Any, LockOptions], object]


def _for_update(statement: Any, lock: LockOptions, **more: Any) -> Any:
    return statement.with_for_update(read=lock is SHARED, **more)


def _rows(kind: Any) -> Any:
    return sa.select(kind).where(kind.state == 1)


def _key(kind: Any) -> Any:
    return sa.select(kind.id).where(kind.state == 1)


def _alias(kind: Any) -> Any:
    other = aliased(kind)
    return sa.select(other.id).where(other.state == 1)


WAYS: Mapping[str, Act] = {
    "key": lambda s, k, lock: s.get_entity(k, 1, lock),
    "some columns": lambda s, k, lock: s.get_entity(k, 1, lock, options=[load_only(k.id)]),
    "keys": lambda s, k, lock: s.get_entities(k, [1, 2], lock),
    "set": lambda s, k, lock: s.scalars(s.entity_set(k, lock).where(k.state == 1)).all(),
    "set, ordered": lambda s, k, lock: s.scalars(
        s.entity_set(k, lock).where(k.state == 1).order_by(k.state)
    ).all(),
    "set, SKIP LOCKED": lambda s, k, lock: s.scalars(
        s.entity_set(k, lock | SKIP).where(k.state == 1)
    ).all(),
    "set, SKIP LOCKED, LIMIT": lambda s, k, lock: s.scalars(
        s.entity_set(k, lock | SKIP).where(k.state == 1).limit(1)
    ).all(),
    "with_lock, key": lambda s, k, lock: s.scalars(locked_select(_key(k), lock)).all(),
    "with_lock, load_only": lambda s, k, lock: s.scalars(
        locked_select(_rows(k).options(load_only(k.id)), lock)
    ).all(),
    "adopted": lambda s, k, lock: s.scalars(_for_update(_rows(k), lock)).all(),
    "adopted, get()": lambda s, k, lock: s.get(k, 1, with_for_update={"read": lock is SHARED}),
    "adopted, refresh()": lambda s, k, lock: s.refresh(
        s.get_one(k, 1), ["state"], with_for_update={"read": lock is SHARED}
    ),
    "adopted, load_only": lambda s, k, lock: s.scalars(
        _for_update(_rows(k).options(load_only(k.id)), lock)
    ).all(),
    "adopted, key": lambda s, k, lock: s.scalars(_for_update(_key(k), lock)).all(),
    "adopted, key and LIMIT": lambda s, k, lock: s.scalars(
        _for_update(_key(k).limit(1), lock, skip_locked=True)
    ).all(),
    "adopted, alias": lambda s, k, lock: s.scalars(_for_update(_alias(k), lock)).all(),
    "adopted, Bundle": lambda s, k, lock: s.execute(
        _for_update(sa.select(Bundle("b", k.id)).where(k.state == 1), lock)
    ).all(),
    "adopted, Core": lambda s, k, lock: s.execute(
        _for_update(sa.select(k.__table__.c.id).where(k.__table__.c.state == 1), lock)
    ).all(),
    "adopted, Query": lambda s, k, lock: (
        s.query(k.id).filter(k.state == 1).with_for_update(read=lock is SHARED).all()
    ),
    "adopted, a join": lambda s, k, lock: s.scalars(
        _for_update(
            sa.select(k.id).join(Piece, Piece.ware_id == k.id).where(k.state == 1), lock, of=k
        )
    ).all(),
}


@pytest.fixture
def wares(engine: sa.Engine, database: Database) -> None:
    """Create the tables, each with some rows."""
    database.create(Base.metadata)
    with engine.begin() as connection:
        for table in (Ware.__table__, Task.__table__):
            rows = [{"id": number, "state": number % 10} for number in range(1, 30)]
            connection.execute(sa.insert(table), rows)  # type: ignore[arg-type]
        connection.execute(sa.insert(Piece), [{"id": n, "ware_id": n} for n in range(1, 30)])


@pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql")
@pytest.mark.read_committed
@pytest.mark.usefixtures("wares")
@pytest.mark.parametrize("lock", [FOR_UPDATE, SHARED], ids=["update", "shared"])
@pytest.mark.parametrize("kind", [Ware, Task])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_listed_is_locked(
    session: LockingSession, other: LockingSession, way: str, kind: Any, lock: LockOptions
) -> None:
    try:
        WAYS[way](session, kind, lock)
    except LockNotSupported:
        assert not session.held_locks
        return
    for entity, (key,) in session.held_locks:
        assert finds_held(entity, key)(other)
    # A shared lock may cover only an index entry; columns alone are not listed.
    assert session.held_locks or lock is SHARED or way == "with_lock, key"


@pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql")
@pytest.mark.read_committed
@pytest.mark.usefixtures("wares")
@pytest.mark.parametrize("kind", [Ware, Task])
def test_a_claim_is_locked(engine: sa.Engine, other: LockingSession, kind: Any) -> None:
    for claim in claim_each(sessionmaker(engine, class_=LockingSession), _rows(kind), limit=1):
        with claim as row:
            assert claim.session.held_locks
            assert finds_held(kind, row.id)(other)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql")
@pytest.mark.read_committed
@pytest.mark.usefixtures("wares")
def test_a_name_is_locked(session: LockingSession, other: LockingSession) -> None:
    session.lock_key("ware:1")
    with pytest.raises(LockNotAvailable):
        other.lock_key("ware:1", lock_timeout=0)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "mssql")
@pytest.mark.read_committed
@pytest.mark.usefixtures("wares")
@pytest.mark.parametrize("kind", [Ware, Task])
@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_plain_session_locks_the_rows_of_with_lock(
    engine: sa.Engine, other: LockingSession, kind: Any
) -> None:
    with Session(engine) as plain:
        assert plain.scalars(locked_select(_key(kind), FOR_UPDATE)).all()
        assert finds_held(kind, 1)(other)


# --------------------------------------------------------------------------------------------------
# A set of locked rows is compiled once, whether the program builds its statement again or keeps it.

ForUpdate = LockOptions.ForUpdate


def with_a_lock() -> sa.Select[Any]:
    return with_lock(sa.select(Order).where(Order.id == 1), ForUpdate)


def for_update() -> sa.Select[Any]:
    return sa.select(Order).where(Order.id == 1).with_for_update()


def of_an_alias() -> sa.Select[Any]:
    alias = aliased(Order)
    return sa.select(alias).where(alias.id == 1).with_for_update()


def of_a_table() -> sa.Select[Any]:
    table = Order.__table__
    return sa.select(table).where(table.c.id == 1).with_for_update()


WAYS_COMPILED_ONCE: list[Callable[[], sa.Select[Any]]] = [
    with_a_lock,
    for_update,
    of_an_alias,
    of_a_table,
]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that collects each compiled statement, including unsent ones."""
    found: list[Any] = []
    init = SQLCompiler.__init__

    def noting(self: SQLCompiler, dialect: Any, statement: Any, *args: Any, **kwargs: Any) -> None:
        found.append(statement)
        init(self, dialect, statement, *args, **kwargs)

    monkeypatch.setattr(SQLCompiler, "__init__", noting)
    return found


@rows("kept", [False, True])
@rows("make", WAYS_COMPILED_ONCE)
def test_it_is_compiled_once(
    session: LockingSession, compiled: list[Any], make: Callable[[], sa.Select[Any]], kept: bool
) -> None:
    statement, found = make(), []
    for _ in range(3):
        compiled.clear()
        session.execute(statement if kept else make()).all()
        # Other tests map more classes on the table; a statement of the table locks for all.
        assert (Order, (1,)) in session.held_locks
        session.rollback()
        found.append(bool(compiled))
    assert found[1:] == [False, False]


def test_the_same_sql_of_another_alias_is_of_its_own_rows(session: LockingSession) -> None:
    for key in (1, 2):
        alias = aliased(Order)
        found = session.scalars(sa.select(alias).where(alias.id == key).with_for_update()).one()
        assert found.id == key
    assert set(session.held_locks) == {(Order, (1,)), (Order, (2,))}


@rows("lock", [ForUpdate, LockOptions.SnapshotRead])
def test_of_two_aliases_the_named_one_is_locked(session: LockingSession, lock: LockOptions) -> None:
    first, second = aliased(Order), aliased(Order)
    both = sa.select(first, second).join(second, second.id == first.id + 1).where(first.id == 1)
    for entity, key in ((first, 1), (second, 2)):
        session.execute(with_lock(both, lock, entity)).all()
        assert list(session.held_locks) == [(Order, (key,))]
        session.rollback()


@rows("columns", [(Order.total, Order), (Order, Order.total), (Line.id, Order)])
def test_columns_that_come_later_move_the_objects(
    session: LockingSession, columns: tuple[Any, ...]
) -> None:
    locked = with_lock(sa.select(Order).where(Order.id == 1), ForUpdate)
    session.execute(locked.join(Order.lines).with_only_columns(*columns)).all()
    assert list(session.held_locks) == [(Order, (1,))]
