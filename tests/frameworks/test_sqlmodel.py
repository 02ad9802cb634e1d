"""SQLModel: its exec() and ours in one session, in both orders of bases under asyncio."""

# SQLModel reads the annotations itself: no "from __future__ import annotations" here.
import asyncio
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy.orm import registry, sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockMisuse,
    LockOptions,
    UnlockedWrite,
    document,
    with_lock,
)
from tests.frameworks import program as tables
from tests.frameworks.conftest import Check, Enter
from tests.frameworks.program import ON_TWO_DATABASES, Program
from tests.support.actors import Actor

sqlmodel = pytest.importorskip("sqlmodel", reason="SQLMODEL IS NOT TESTED")
from sqlmodel import Field, Relationship, SQLModel, select  # noqa: E402
from sqlmodel.ext.asyncio.session import AsyncSession as TheirAsyncSession  # noqa: E402

pytestmark = ON_TWO_DATABASES
FOR_UPDATE = LockOptions.ForUpdate


class Base(SQLModel, registry=registry()):
    """Of a separate registry: the samples of the page have classes of the same names."""


@document(parts=("lines",))
class Order(Base, table=True):
    __tablename__ = tables.Order.__tablename__
    id: int = Field(primary_key=True)
    total: int
    lines: list["Line"] = Relationship(
        back_populates="order", sa_relationship_kwargs={"order_by": "Line.id"}
    )


class Line(Base, table=True):
    __tablename__ = tables.Line.__tablename__
    id: int | None = Field(default=None, primary_key=True)
    order_id: int | None = Field(default=None, foreign_key=f"{Order.__tablename__}.id")
    value: int
    order: Order = Relationship(back_populates="lines")


class AppSession(sqlmodel.Session, LockingSession):  # type: ignore[misc, name-defined]
    pass


class First(TheirAsyncSession, AsyncLockingSession):  # type: ignore[misc]
    pass


class Last(AsyncLockingSession, TheirAsyncSession):  # type: ignore[misc]
    pass


def add_line(order: Order, value: int) -> int:
    order.lines.append(Line(value=value))
    order.total = sum(line.value for line in order.lines)
    return order.total


def by_exec(session: Any) -> int:
    statement = with_lock(select(Order), FOR_UPDATE).where(Order.id == 1)
    order = session.exec(statement).one()
    assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
    return add_line(order, 5)


def by_for_update(session: Any) -> int:
    statement = select(Order).where(Order.id == 1).with_for_update()
    order = session.exec(statement).one()
    assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
    return add_line(order, 5)


def by_block(session: Any) -> int:
    with session.locked_document(Order, 1) as order:
        return add_line(order, 5)


@pytest.mark.parametrize("lock", [by_exec, by_for_update, by_block])
def test_a_lock_waits_for_the_holder_and_sees_its_line(
    program: Program, lock: Callable[[Any], int], enter_visitor: Enter, check_waits: Check
) -> None:
    visitor: Actor[Any] = enter_visitor(sessionmaker(program.engine(), class_=AppSession))
    check_waits(visitor, lock)


@pytest.mark.parametrize("kind", [First, Last])
def test_under_asyncio_in_both_orders_of_bases(
    program: Program, kind: Any, enter_visitor: Enter, check_waits: Check
) -> None:
    engine = program.async_engine()

    async def post_line() -> int:
        async with kind(engine) as session:
            statement = with_lock(select(Order), FOR_UPDATE).where(Order.id == 1)
            assert (await session.exec(statement)).one().id == 1
            assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
            total = add_line(await session.get_one_document(Order, 1, FOR_UPDATE), 5)
            await session.save_changes()
            return total

    @contextmanager
    def nothing() -> Any:
        yield None

    check_waits(enter_visitor(nothing), lambda _: asyncio.run(post_line()))


def test_what_was_read_by_exec_is_guarded(program: Program) -> None:
    with AppSession(program.engine()) as session:
        order = session.exec(select(Order).where(Order.id == 1)).one()
        order.sqlmodel_update({"total": 7})
        with pytest.raises(UnlockedWrite):
            session.commit()


def test_the_wrong_order_of_bases_is_refused() -> None:
    with pytest.raises(LockMisuse, match=r"class AppSession\(Session, LockingSession\)"):
        type("AppSession", (LockingSession, sqlmodel.Session), {})
