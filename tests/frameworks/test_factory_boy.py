"""factory_boy: new documents need no lock; what a factory adds to an old one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    LockingScopedSession,
    LockingSession,
    LockOptions,
    UnlockedWrite,
)
from tests.frameworks.program import ON_TWO_DATABASES, Line, Order, Program, is_free, stored
from tests.support.actors import Actor

pytest.importorskip("factory", reason="FACTORY_BOY IS NOT TESTED")
from factory.alchemy import SESSION_PERSISTENCE_COMMIT, SQLAlchemyModelFactory
from factory.declarations import LazyFunction, Sequence

pytestmark = ON_TWO_DATABASES
Scoped = LockingScopedSession[LockingSession]
Alice = Actor[LockingSession]
FOR_UPDATE = LockOptions.ForUpdate


@pytest.fixture
def session(program: Program) -> Iterator[Scoped]:
    session = LockingScopedSession(sessionmaker(program.engine(), class_=LockingSession))
    yield session
    session.remove()


@pytest.fixture
def orders(session: Scoped) -> Any:
    class OrderFactory(SQLAlchemyModelFactory):
        class Meta:
            model = Order
            sqlalchemy_session = session
            sqlalchemy_session_persistence = SESSION_PERSISTENCE_COMMIT

        id = Sequence(lambda number: 10 + number)  # type: ignore[no-untyped-call]
        total = 5
        lines = LazyFunction(lambda: [Line(value=5)])  # type: ignore[no-untyped-call]

    return OrderFactory


@pytest.fixture
def lines(session: Scoped) -> Any:
    class LineFactory(SQLAlchemyModelFactory):
        class Meta:
            model = Line
            sqlalchemy_session = session
            sqlalchemy_session_persistence = SESSION_PERSISTENCE_COMMIT

        value = 5

    return LineFactory


def test_new_documents_are_there_for_the_program_and_hold_nothing(
    orders: Any, session: Scoped, alice: Alice
) -> None:
    made = orders.create_batch(2)
    keys = [order.id for order in made]
    session.rollback()  # the factory has committed
    with_lock = alice.does(
        lambda own: [
            one.total for one in own.get_entities(Order, keys, FOR_UPDATE | LockOptions.NoWait)
        ]
    )
    assert with_lock == [5, 5]


def test_a_part_of_an_old_document_needs_its_lock(
    lines: Any, session: Scoped, alice: Alice
) -> None:
    with pytest.raises(UnlockedWrite):
        lines.create(order=session.get_one(Order, 1))
    session.rollback()
    with session.unguarded():
        lines.create(order=session.get_one(Order, 1))
    session.get_one_entity(Order, 1, FOR_UPDATE)
    lines.create(order=session.get_one(Order, 1), value=6)
    assert alice.does(stored) == (30, [10, 20, 5, 6])
    assert alice.does(is_free)
