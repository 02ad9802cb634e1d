"""A header inserted by this transaction needs no lock: it is invisible to other sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from sa_doclock import LockingSession, UnlockedWrite
from tests.integration.guard.models import (
    Customer,
    Lease,
    Line,
    Memo,
    Note,
    Order,
    Seal,
    Tag,
    Tax,
    Terms,
)
from tests.integration.guard.steps import hold, refused

pytestmark = pytest.mark.quick


def new_order() -> Order:
    return Order(id=9, total=5, lines=[Line(id=9, value=5, taxes=[Tax(id=9)])])


def test_a_new_document_is_inserted_with_its_parts(session: LockingSession) -> None:
    session.add(new_order())
    session.commit()


def test_so_it_is_when_only_the_foreign_keys_say_what_belongs_together(
    session: LockingSession,
) -> None:
    session.add_all([Tax(id=9, line_id=9), Line(id=9, order_id=9), Order(id=9)])
    session.commit()


def test_a_new_part_beside_a_new_header_is_not_that_headers(session: LockingSession) -> None:
    session.add_all([Order(id=9), Line(id=9, order_id=1)])
    with refused(session, Order, 1, "Line"):
        session.flush()


def test_it_may_be_changed_after_its_flush(session: LockingSession) -> None:
    session.add(order := new_order())
    session.flush()
    order.total = 6
    order.lines[0].value = 6
    order.lines[0].taxes[0].rate = 7
    order.lines.append(Line(id=10))
    session.flush()
    order.lines.pop(0)
    session.flush()
    session.delete(order)
    session.commit()


def test_so_it_is_when_it_was_read_again(session: LockingSession) -> None:
    session.add(new_order())
    session.flush()
    session.expunge_all()
    line = session.get_one(Line, 9)
    line.value = 6
    session.commit()


def test_a_new_document_may_have_the_key_that_the_database_gives(session: LockingSession) -> None:
    session.add(memo := Memo(notes=[Note()]))
    session.flush()
    memo.total = 1
    memo.notes.append(Note())
    session.add(Note(memo_id=memo.id))
    session.flush()
    ident = memo.id
    session.commit()
    memo.total = 2
    with refused(session, Memo, ident, "'total'"):
        session.flush()


def test_a_subclass_with_parts_that_come_one_at_a_time(session: LockingSession) -> None:
    lease = Lease(id=9, terms=Terms(id=9, text="new"), seal=Seal(id=9, text="blue"))
    session.add(lease)
    session.flush()
    assert lease.terms is not None
    assert lease.seal is not None
    lease.rent, lease.terms.text, lease.seal.text = 1, "old", "green"
    session.commit()


@pytest.mark.parametrize("part", [False, True])
def test_after_the_commit_it_needs_the_lock(session: LockingSession, part: bool) -> None:
    session.add(order := new_order())
    session.commit()
    if part:
        order.lines[0].value = 6
    else:
        order.total = 6
    with refused(session, Order, 9):
        session.flush()


def test_an_insert_rolled_back_with_its_savepoint_leaves_nothing(session: LockingSession) -> None:
    with session.begin_nested() as savepoint:
        session.add(new_order())
        session.flush()
        savepoint.rollback()
    session.add(Line(id=10, order_id=9))
    with refused(session, Order, 9):
        session.flush()


def test_an_insert_before_a_savepoint_outlives_its_rollback(session: LockingSession) -> None:
    session.add(order := new_order())
    session.flush()
    with session.begin_nested() as savepoint:
        order.total = 6
        session.flush()
        savepoint.rollback()
    order.total = 7
    session.commit()


def test_an_insert_in_a_released_savepoint_is_this_transactions(session: LockingSession) -> None:
    with session.begin_nested():
        session.add(order := new_order())
    order.total = 6
    session.commit()


def test_an_insert_in_a_rolled_back_transaction_leaves_nothing(session: LockingSession) -> None:
    session.add(new_order())
    session.flush()
    session.rollback()
    session.add(Line(id=10, order_id=9))
    with refused(session, Order, 9):
        session.flush()


def test_a_new_document_takes_no_part_of_another(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    session.add(order := Order(id=9, lines=[line]))
    with refused(session, Order, 1, "Line 1"):
        session.flush()
    assert order in session.new


def test_unless_the_other_is_held(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)
    session.add(Order(id=9, lines=[line]))
    session.commit()
    assert line.order_id == 9
    assert held


def test_a_new_document_may_have_the_tags_of_others(session: LockingSession) -> None:
    session.add(Order(id=9, tags=[tag := session.get_one(Tag, 1)]))
    session.commit()
    assert [order.id for order in tag.orders] == [1, 2, 9]


def test_what_is_not_declared_may_have_a_new_document(session: LockingSession) -> None:
    customer = session.get_one(Customer, 2)
    customer.orders.append(new_order())
    session.commit()


# --------------------------------------------------------------------------------------------------
# A document that a transaction inserts stays new until it ends, whoever ends it.

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
    make: Any = sa.DDL  # DDL has no types
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


@pytest.mark.each_value
@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_it_ends_with_the_transaction(session: Session, insert: Step, end: Step) -> None:
    insert(session)
    end(session)
    is_refused(session, WRITES["its header"])


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_of_it_is_written(session: Session, write: Step) -> None:
    INSERTS["flush"](session)
    text("COMMIT", "SELECT 1")(session)
    is_refused(session, write)


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
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


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_the_lender_ends_it(lender: sa.Connection, insert: Step) -> None:
    lender.begin()
    with LockingSession(lender) as session:
        insert(session)
        lender.commit()
        is_refused(session, WRITES["its header"])


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
def test_a_savepoint_that_is_rolled_back_by_text_ends_it(session: Session) -> None:
    session.get(Order, 1)  # a driver may begin the transaction with the first statement
    text("SAVEPOINT mine")(session)
    INSERTS["flush"](session)
    text("ROLLBACK TO SAVEPOINT mine")(session)
    session.expunge_all()
    WRITES["a part"](session)
    with pytest.raises((UnlockedWrite, DBAPIError)):  # the row no longer exists
        session.flush()
    session.rollback()


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
@pytest.mark.parametrize("insert", INSERTS.values(), ids=INSERTS)
def test_statements_that_end_nothing_leave_it_new(session: Session, insert: Step) -> None:
    insert(session)
    text("SELECT 1")(session)
    session.connection().exec_driver_sql("SELECT 1").close()
    WRITES["its header"](session)
    WRITES["a part"](session)
    session.commit()
    assert session.scalar(sa.select(Order.total).where(Order.id == 9)) == 1


@pytest.mark.databases("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.filterwarnings("ignore:.*already deassociated:sqlalchemy.exc.SAWarning")
@pytest.mark.filterwarnings("ignore:transaction already:sqlalchemy.exc.SAWarning")
def test_the_next_transaction_knows_of_none(session: Session) -> None:
    INSERTS["flush"](session)
    session.commit()
    is_refused(session, WRITES["its header"])
