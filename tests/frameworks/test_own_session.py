"""An existing Session class of a program: beside ours, with all that it does."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import ORMExecuteState, Session, sessionmaker, with_loader_criteria

from sa_doclock import LockingSession, LockOptions, UnlockedWrite, run_transaction, with_lock
from tests.frameworks.conftest import Check, Enter
from tests.frameworks.program import ON_TWO_DATABASES, Order, Program, add_line

pytestmark = ON_TWO_DATABASES
FOR_UPDATE = LockOptions.ForUpdate


class ExistingSession(Session):
    """The session of a program: a tenant, an engine by class, a method that executes."""

    def __init__(
        self, *args: Any, largest: int, engines: dict[str, sa.Engine], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.largest, self.engines, self.commits = largest, engines, 0

    def get_bind(self, *args: Any, **kwargs: Any) -> sa.Engine:
        return self.engines["main"]

    def commit(self) -> None:
        self.commits += 1
        super().commit()

    def first(self, statement: Any) -> Any:
        return super().execute(statement).scalars().first()


class AppSession(ExistingSession, LockingSession):  # LockingSession last
    pass


@event.listens_for(AppSession, "do_orm_execute")
def limit_to_tenant(state: ORMExecuteState) -> None:
    if state.is_select and not state.is_column_load and not state.is_relationship_load:
        largest = state.session.largest  # type: ignore[attr-defined]
        limit = with_loader_criteria(Order, lambda cls: cls.id <= largest)
        state.statement = state.statement.options(limit)


@pytest.fixture
def sessions(program: Program) -> sessionmaker[AppSession]:
    engines = {"main": program.engine()}
    return sessionmaker(class_=AppSession, largest=1, engines=engines)


def by_block(session: AppSession) -> int:
    with session.locked_document(Order, 1) as order:
        total = add_line(order, 5)
    assert session.commits == 1
    return total


def by_own_method(session: AppSession) -> int:
    order = session.first(with_lock(sa.select(Order), FOR_UPDATE))
    assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
    return add_line(order, 5)


def by_own_for_update(session: AppSession) -> int:
    order = session.first(sa.select(Order).with_for_update())
    assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}
    return add_line(order, 5)


@pytest.mark.parametrize("take", [by_block, by_own_method, by_own_for_update])
def test_a_lock_waits_for_the_holder_and_sees_its_line(
    take: Any, sessions: sessionmaker[AppSession], enter_visitor: Enter, check_waits: Check
) -> None:
    check_waits(enter_visitor(sessions), take)


def test_its_criteria_are_in_every_lock(sessions: sessionmaker[AppSession]) -> None:
    with sessions() as session:
        assert session.get_entity(Order, 2, FOR_UPDATE) is None
        assert [one.id for one in session.get_entities(Order, [1, 2], FOR_UPDATE)] == [1]
        every = session.scalars(session.entity_set(Order, FOR_UPDATE))
        assert [order.id for order in every] == [1]
        assert dict(session.held_locks) == {(Order, (1,)): FOR_UPDATE}


def test_its_writes_are_guarded_and_its_transactions_repeated(
    sessions: sessionmaker[AppSession],
) -> None:
    def without_lock(session: AppSession) -> None:
        session.get_one(Order, 1).total = 7

    with pytest.raises(UnlockedWrite):
        run_transaction(sessions, without_lock)
