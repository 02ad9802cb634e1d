"""A set of locked rows is compiled once, whether the program builds its statement anew or keeps it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import aliased
from sqlalchemy.sql.compiler import SQLCompiler

from sa_doclock import LockingSession, LockOptions, with_lock
from tests.support.models import Line, Order
from tests.support.rows import rows

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


WAYS: list[Callable[[], sa.Select[Any]]] = [with_a_lock, for_update, of_an_alias, of_a_table]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each compiled statement is added, also one that is not sent."""
    found: list[Any] = []
    init = SQLCompiler.__init__

    def noting(self: SQLCompiler, dialect: Any, statement: Any, *args: Any, **kwargs: Any) -> None:
        found.append(statement)
        init(self, dialect, statement, *args, **kwargs)

    monkeypatch.setattr(SQLCompiler, "__init__", noting)
    return found


@rows("kept", [False, True])
@rows("make", WAYS)
def test_it_is_compiled_once(
    session: LockingSession, compiled: list[Any], make: Callable[[], sa.Select[Any]], kept: bool
) -> None:
    statement, found = make(), []
    for _ in range(3):
        compiled.clear()
        session.execute(statement if kept else make()).all()
        # Other tests map more classes on the table, all of which a statement of the table locks.
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
