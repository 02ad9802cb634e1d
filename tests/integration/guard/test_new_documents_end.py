"""A document that the transaction has inserted is new until that transaction ends, whoever ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import Line, Order

pytestmark = [
    pytest.mark.quick,
    pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb"),
    pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning"),
    pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning"),
]

Session = LockingSession
Step = Callable[[Session], object]
INNODB = ("mysql", "mariadb")


def text(*statements: str) -> Step:
    def step(session: Session) -> None:
        for one in statements:
            session.execute(sa.text(one)).close()

    return step


def by_cursor(*statements: str) -> Step:
    def step(session: Session) -> None:
        cursor = session.connection().connection.cursor()
        for one in statements:
            cursor.execute(one)
        cursor.close()

    return step


def by_driver(session: Session) -> None:
    session.connection().connection.driver_connection.commit()  # type: ignore[union-attr]


def exec_driver_sql(session: Session) -> None:
    session.connection().exec_driver_sql("COMMIT")


def by_ddl(session: Session) -> None:
    make: Any = sa.DDL  # it has no types
    session.execute(make("CREATE TABLE lk_beside (id INTEGER)"))
    session.execute(make("DROP TABLE lk_beside"))


ENDS: dict[str, Step] = {
    "text": text("COMMIT"),
    "text, and a statement": text("COMMIT", "SELECT 1"),
    "a new transaction by text": text("COMMIT", "BEGIN"),
    "exec_driver_sql": exec_driver_sql,
    "driver": by_driver,
    "cursor": by_cursor("COMMIT"),
    "cursor, and a new transaction": by_cursor("COMMIT", "BEGIN"),
}


def by_flush(session: Session) -> None:
    session.add(Order(id=9, total=0))
    session.flush()


INSERTS: dict[str, Step] = {
    "flush": by_flush,
    "statement": lambda session: session.execute(sa.insert(Order).values(id=9, total=0)),
    "bulk": lambda session: session.bulk_insert_mappings(Order, [{"id": 9, "total": 0}]),
}
WRITES: dict[str, Step] = {
    "its header": lambda session: setattr(session.get_one(Order, 9), "total", 1),
    "a part": lambda session: session.add(Line(id=90, order_id=9, value=1)),
    "a statement": lambda session: session.execute(
        sa.update(Order).where(Order.id == 9).values(total=1)
    ),
}


def is_refused(session: Session, write: Step) -> None:
    def flush() -> None:
        write(session)
        session.flush()

    with pytest.raises(UnlockedWrite):
        flush()
    session.rollback()


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_it_ends_with_the_transaction(session: Session, insert: Step, end: Step) -> None:
    insert(session)
    end(session)
    is_refused(session, WRITES["its header"])


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_of_it_is_written(session: Session, write: Step) -> None:
    INSERTS["flush"](session)
    text("COMMIT", "SELECT 1")(session)
    is_refused(session, write)


@pytest.mark.databases(*INNODB)
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_ddl_ends_it(session: Session, insert: Step) -> None:
    insert(session)
    by_ddl(session)
    is_refused(session, WRITES["its header"])


@pytest.fixture
def lender(engine: sa.Engine) -> Iterator[sa.Connection]:
    with engine.connect() as connection:
        yield connection


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_the_lender_ends_it(lender: sa.Connection, insert: Step) -> None:
    lender.begin()
    with LockingSession(lender) as session:
        insert(session)
        lender.commit()
        is_refused(session, WRITES["its header"])


def test_a_savepoint_that_is_rolled_back_by_text_ends_it(session: Session) -> None:
    session.get(Order, 1)  # a driver may begin the transaction with the first statement
    text("SAVEPOINT mine")(session)
    INSERTS["flush"](session)
    text("ROLLBACK TO SAVEPOINT mine")(session)
    session.expunge_all()
    WRITES["a part"](session)
    with pytest.raises((UnlockedWrite, DBAPIError)):  # there is no such row any more
        session.flush()
    session.rollback()


@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_statements_that_end_nothing_leave_it_new(session: Session, insert: Step) -> None:
    insert(session)
    text("SELECT 1")(session)
    session.connection().exec_driver_sql("SELECT 1").close()
    WRITES["its header"](session)
    WRITES["a part"](session)
    session.commit()
    assert session.scalar(sa.select(Order.total).where(Order.id == 9)) == 1


def test_the_next_transaction_knows_of_none(session: Session) -> None:
    INSERTS["flush"](session)
    session.commit()
    is_refused(session, WRITES["its header"])
