"""with_for_update() of a declared document means what get_entity() means, at every isolation level.

At REPEATABLE READ a plain read may be older than the lock: a fresh header over old lines is a wrong total.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, WrongIsolation
from tests.integration.guard.models import Customer, Line, Order
from tests.support.databases import Database

pytestmark = [pytest.mark.quick, pytest.mark.databases("postgresql", "mysql", "mariadb")]

Step = Callable[[LockingSession], Any]
RR = "REPEATABLE READ"
BY_SELECT = sa.select(Order).where(Order.id == 1).with_for_update()

FORMS: dict[str, Step] = {
    "execute": lambda session: session.execute(BY_SELECT).scalar_one(),
    "scalars": lambda session: session.scalars(BY_SELECT).one(),
    "read=True": lambda session: session.scalars(
        sa.select(Order).where(Order.id == 1).with_for_update(read=True)
    ).one(),
    "query": lambda session: session.query(Order).with_for_update().filter_by(id=1).one(),
    "get": lambda session: session.get(Order, 1, with_for_update=True),
    "refresh": lambda session: session.refresh(session.get_one(Order, 1), with_for_update=True),
    "a key": lambda session: session.scalar(
        sa.select(Order.id).where(Order.id == 1).with_for_update()
    ),
    "a join": lambda session: session.scalars(
        sa.select(Order).join(Order.lines).where(Line.id == 1).with_for_update(of=Order)
    ).one(),
}


def open_at(database: Database, level: str) -> LockingSession:
    return LockingSession(database.engine(isolation_level=level))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_after_a_read_it_is_refused(documents: Database, form: Step) -> None:
    with open_at(documents, RR) as session:
        session.scalars(sa.select(Customer)).all()
        with pytest.raises(WrongIsolation, match="open at REPEATABLE READ"):
            form(session)
        session.rollback()
        assert not session.held_locks


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("form", [FORMS["execute"], FORMS["query"], FORMS["get"]])
def test_as_the_first_statement_it_reads_the_newest_lines(
    documents: Database, make_session: Callable[..., LockingSession], form: Step
) -> None:
    with open_at(documents, RR) as session:
        order = form(session)
        other = make_session(guard="off")
        other.execute(sa.update(Line).where(Line.order_id == 1).values(value=77))
        other.commit()
        assert {line.value for line in order.lines} == {77}


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("level", [RR, "SERIALIZABLE"])
def test_on_postgresql_the_statement_itself_takes_the_snapshot(
    documents: Database, level: str
) -> None:
    with open_at(documents, level) as session:
        with pytest.raises(WrongIsolation, match=f"open at {level}"):
            session.execute(BY_SELECT)
        session.rollback()


@pytest.mark.parametrize("level", ["READ COMMITTED"])
def test_at_read_committed_it_is_a_lock(documents: Database, level: str) -> None:
    with open_at(documents, level) as session:
        session.scalars(sa.select(Customer)).all()
        session.scalars(BY_SELECT).one().total = 5
        session.commit()


def test_of_an_undeclared_class_it_stays_sqlalchemys(documents: Database) -> None:
    with open_at(documents, RR) as session:
        session.scalars(sa.select(Customer)).all()
        session.scalars(sa.select(Customer).with_for_update()).all()
        session.commit()


def test_a_lock_of_ours_sets_the_level_for_those_after_it(documents: Database) -> None:
    with LockingSession(documents.engine()) as session:
        session.lock_key("first")
        session.scalars(BY_SELECT).one().total = 5
        session.commit()
