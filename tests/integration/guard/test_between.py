"""Another session commits between the guard's query and the statement that it checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError
from sqlalchemy.orm import aliased

from sa_doclock import LockingSession, LockMisuse, LockOptions, UnlockedWrite, with_lock
from tests.integration.guard.models import Customer, Line, Order, Repair, Tax, Ticket, Work
from tests.integration.guard.steps import Action, hold, refused
from tests.support.databases import Database

WRITES = ("UPDATE", "DELETE", "INSERT")
LINES: Any = Line.__table__
WORK: Any = Work.__table__


@contextmanager
def before_the_write(
    session: LockingSession, database: Database, meanwhile: sa.Executable
) -> Iterator[None]:
    """Commit this statement in another session, before ours sends its first lock or write."""
    other, left = database.engine(poolclass=sa.NullPool), [meanwhile]

    def run(_: object, __: object, statement: str, *___: object) -> None:
        locks = "FOR UPDATE" in statement
        if (locks or statement.lstrip().upper().startswith(WRITES)) and left:
            with other.begin() as connection:
                connection.execute(left.pop())

    bind = session.get_bind()
    sa.event.listen(bind, "before_cursor_execute", run)
    try:
        yield
    finally:
        sa.event.remove(bind, "before_cursor_execute", run)
    assert left == []


class Case(NamedTuple):
    action: Action
    meanwhile: sa.Executable
    before: sa.Executable = sa.select(1)
    held: int | None = 1
    entity: type[Any] = Order


def run(statement: Any) -> Action:
    return lambda session: session.execute(statement)


COMES = sa.update(LINES).where(LINES.c.id == 3).values(value=99)
LARGE = Line.value > 15
CASES: dict[str, Case] = {
    "parts": Case(run(sa.update(Line).where(LARGE).values(value=0)), COMES),
    "parts, deleted": Case(
        run(sa.delete(Tax).where(Tax.rate > 50)), sa.update(Tax).where(Tax.id == 3).values(rate=99)
    ),
    "parts, moved": Case(run(sa.update(Line).where(LARGE).values(order_id=1)), COMES),
    "table": Case(run(sa.update(LINES).where(LINES.c.value > 15).values(value=0)), COMES),
    "query": Case(lambda s: s.query(Line).filter(LARGE).update({"value": 0}), COMES),
    "headers": Case(
        run(sa.update(Order).where(Order.total > 20).values(total=0)),
        sa.update(Order).where(Order.id == 2).values(total=99),
    ),
    "joined": Case(
        run(sa.update(Line).where(LARGE, Order.id >= Line.order_id).values(value=0)), COMES
    ),
    "copied": Case(
        run(
            sa.insert(LINES).from_select(
                ["id", "order_no", "value"],
                sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value).where(
                    LINES.c.value > 15
                ),
            )
        ),
        COMES,
    ),
    "copied, of another": Case(
        run(
            sa.insert(LINES).from_select(
                ["id", "order_no", "value"],
                sa.select(LINES.c.id + 10, LINES.c.order_no, LINES.c.value).where(LINES.c.id == 3),
            )
        ),
        sa.update(LINES).where(LINES.c.id == 3).values(order_no=2),
        sa.update(LINES).where(LINES.c.id == 3).values(order_no=1),
    ),
    "a class above": Case(
        run(sa.update(Work).where(Work.hours > 5).values(hours=0)),
        sa.update(Work).where(Work.id == 2).values(hours=9),
        held=None,
    ),
}


def state(stored: Callable[[Any, Any], Any]) -> list[Any]:
    keys = [
        (Line.value, 3),
        (Line.order_id, 3),
        (Line.value, 13),
        (Order.total, 2),
        (Work.hours, 2),
    ]
    return [stored(*one) for one in keys]


ORPHAN, ADOPTED = (sa.update(WORK).where(WORK.c.id == 1).values(fault_id=n) for n in (None, 2))
ONE = sa.update(Repair).where(Repair.id == 1)
CASES["of no document"] = Case(run(ONE.values(hours=7)), ADOPTED, ORPHAN, None)
CASES["of no document, moved"] = Case(run(ONE.values(fault_id=1)), ADOPTED, ORPHAN, 1, Ticket)
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@each_case
@pytest.mark.not_databases("sqlite", "sqlite-journal")  # no session gets past its lock
def test_a_row_that_comes_to_match_is_not_written(
    session: LockingSession, documents: Database, stored: Callable[[Any, Any], Any], case: Case
) -> None:
    with documents.engine().begin() as connection:
        connection.execute(case.before)
    held = hold(session, case.entity, case.held) if case.held else []
    raises = pytest.raises(UnlockedWrite, match="Another transaction added some of them")
    with before_the_write(session, documents, case.meanwhile), raises:
        case.action(session)
    committed = state(stored)
    with pytest.raises(PendingRollbackError, match="wrote without one"):
        session.execute(sa.select(1))
    with pytest.raises(PendingRollbackError):
        session.commit()
    session.rollback()
    assert state(stored) == committed
    assert held == [] or held


@pytest.mark.parametrize("returned", [False, True])
def test_where_nothing_was_held_either(
    session: LockingSession,
    documents: Database,
    stored: Callable[[Any, Any], Any],
    returned: bool,
) -> None:
    statement: Any = sa.update(Line).where(Line.value > 50).values(value=0)
    if returned and documents.name not in ("postgresql", "sqlite"):
        pytest.skip("has no UPDATE .. RETURNING")
    statement = statement.returning(Line) if returned else statement
    with before_the_write(session, documents, COMES), pytest.raises(UnlockedWrite):
        session.execute(statement)
    session.rollback()
    assert stored(Line.value, 3) == 99


@pytest.mark.not_databases("sqlite", "sqlite-journal")
def test_the_rollback_of_a_savepoint_ends_it(
    session: LockingSession, documents: Database, stored: Callable[[Any, Any], Any]
) -> None:
    savepoint = session.begin_nested()
    statement = sa.update(Line).where(Line.value > 50).values(value=0)
    with before_the_write(session, documents, COMES), pytest.raises(UnlockedWrite):
        session.execute(statement)
    savepoint.rollback()
    session.commit()
    assert stored(Line.value, 3) == 99


def test_a_row_that_has_left_is_no_reason(session: LockingSession, documents: Database) -> None:
    statement = sa.update(Work).where(Work.hours == 0, Work.kind == "work").values(hours=1)
    leaves = sa.update(Work).where(Work.id == 3).values(hours=2)
    with before_the_write(session, documents, leaves):
        session.execute(statement)
    session.commit()


def test_rows_of_no_document_count_too(session: LockingSession) -> None:
    session.execute(sa.update(Work).where(Work.id == 3).values(hours=1))
    session.commit()


@pytest.mark.databases("mysql", "mariadb")
def test_rows_of_two_tables_are_not_counted(session: LockingSession) -> None:
    both = sa.update(Line).where(Line.id == 1, Customer.id == Line.id)
    held = hold(session, Order, 1)
    session.execute(both.values({Line.value: 5, Customer.name: "Zoe"}))
    session.commit()
    assert held


@pytest.mark.databases("mysql", "mariadb")
@pytest.mark.parametrize("lines", [LINES, LINES.alias()], ids=["table", "alias"])
def test_rows_of_a_second_table_do_not_show_whose_they_are(
    session: LockingSession, lines: Any
) -> None:
    customers: Any = Customer.__table__
    both = sa.update(customers).where(customers.c.id == lines.c.id, lines.c.id == 3)
    with refused(session, Order, None):
        session.execute(both.values({customers.c.name: "Zoe", lines.c.value: 5}))


# --------------------------------------------------------------------------------------------------
# The count of rows that a statement wrote: what the guard allows and leaves unchanged.

ORDERS: Any = Order.__table__
VALUE: Any = sa.bindparam("old")
NEW: Any = sa.bindparam("new")
CHAIN = [{"old": 10, "new": 20}, {"old": 20, "new": 30}]


@pytest.mark.parametrize(
    "statement",
    [
        sa.update(LINES).where(LINES.c.value == VALUE, LINES.c.order_no == 1).values(value=NEW),
        sa.update(LINES).where(LINES.c.value == VALUE, LINES.c.order_no == 1),
    ],
)
def test_a_row_may_be_written_for_two_of_the_parameters(
    session: LockingSession, stored: Callable[[Any, Any], Any], statement: Any
) -> None:
    held = hold(session, Order, 1)
    session.execute(sa.update(LINES).where(LINES.c.id == 1).values(value=10))
    session.execute(sa.update(LINES).where(LINES.c.id == 2).values(value=20))
    session.execute(statement, [{**one, "value": one["new"]} for one in CHAIN])
    session.commit()
    assert held
    assert [stored(Line.value, ident) for ident in (1, 2)] == [30, 30]


@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize(
    "statement",
    [
        sa.update(LINES).where(LINES.c.order_no == 1).values(value=5).returning(LINES.c.id),
        sa.insert(ORDERS).values([{"id": 70}, {"id": 71}]).returning(ORDERS.c.id),
    ],
    ids=["update", "insert"],
)
def test_the_result_of_a_table_keeps_what_it_knows(
    session: LockingSession, documents: Database, statement: Any
) -> None:
    held = hold(session, Order, 1)
    result: Any = session.execute(statement)
    assert result.returns_rows
    assert [key for (key,) in result] in ([1, 2], [70, 71])
    if (
        documents.name == "postgresql" and statement.is_update
    ):  # SQLAlchemy closes SQLite's cursor first
        assert result.rowcount == 2
    assert held


@pytest.mark.not_databases("mariadb")  # 10.11 does not support DELETE FROM .. AS
@pytest.mark.parametrize("written", [sa.update, sa.delete])
def test_an_alias_of_a_class_is_the_class(session: LockingSession, written: Any) -> None:
    line = aliased(Line)
    statement = written(line).execution_options(synchronize_session=False)
    statement = statement.values(value=5) if statement.is_update else statement
    held = hold(session, Order, 1)
    with refused(session, Order, 2):
        session.execute(statement.where(line.id.in_((2, 3))))
    session.execute(statement.where(line.id == 2))
    session.commit()
    assert held


# --------------------------------------------------------------------------------------------------
# The guard and the locks treat a lambda_stmt() like the statement it stands for.

ForUpdate = LockOptions.ForUpdate


def _move(line: int, order: int) -> Any:
    return sa.lambda_stmt(lambda: sa.update(Line).where(Line.id == line).values(order_id=order))


def _insert(ident: int, order: int) -> Any:
    return sa.lambda_stmt(lambda: sa.insert(Line).values(id=ident, order_id=order, value=1))


def _added(line: int) -> Any:
    return sa.lambda_stmt(lambda: sa.update(Line).values(value=0)) + (
        lambda s: s.where(Line.id == line)
    )


def _spoiled(line: int) -> Any:
    return sa.lambda_stmt(lambda: sa.delete(Tax).where(Tax.line_id == line)).spoil()


# The statement, and the orders that it writes.  The same lambda runs twice, with different values.
CASES_LAMBDA_STATEMENTS: dict[str, tuple[Any, set[int]]] = {
    "move": (_move(1, 2), {1, 2}),
    "stay": (_move(1, 1), {1}),
    "insert": (_insert(91, 1), {1}),
    "insert elsewhere": (_insert(92, 2), {2}),
    "criteria added": (_added(1), {1}),
    "spoiled": (_spoiled(1), {1}),
}


@pytest.mark.parametrize(
    ("statement", "orders"), CASES_LAMBDA_STATEMENTS.values(), ids=CASES_LAMBDA_STATEMENTS
)
def test_a_write_needs_the_locks(session: LockingSession, statement: Any, orders: set[int]) -> None:
    hold(session, Order, *orders)
    session.execute(statement)
    session.rollback()
    for missing in orders:
        hold(session, Order, *orders - {missing})
        with pytest.raises(UnlockedWrite, match=f"Order {missing}"):
            session.execute(statement)
        session.rollback()


def test_none_is_sent(session: LockingSession) -> None:
    with refused(session, Order, 1):
        session.execute(_insert(93, 1))


READS: dict[str, Callable[[LockingSession, Any], Any]] = {
    "execute": lambda session, statement: session.execute(statement).scalar_one(),
    "scalars": lambda session, statement: session.scalars(statement).one(),
    "scalar": lambda session, statement: session.scalar(statement),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_set_is_locked(session: LockingSession, read: Callable[..., Any]) -> None:
    locked = with_lock(sa.select(Order), ForUpdate)
    for ident in (1, 2):
        # SQLAlchemy tracks a lambda's variables, unless told not to.
        statement = sa.lambda_stmt(lambda: locked, enable_tracking=False)
        statement += lambda s: s.where(Order.id == ident)  # noqa: B023
        assert read(session, statement).id == ident
        assert dict(session.held_locks) == {(Order, (ident,)): ForUpdate}
        session.rollback()


def test_a_lock_that_was_replaced_is_refused(session: LockingSession) -> None:
    locked = with_lock(sa.select(Order), ForUpdate)
    statement = sa.lambda_stmt(lambda: locked.with_for_update(read=True), enable_tracking=False)
    with pytest.raises(LockMisuse, match="with_for_update"):
        session.execute(statement)


def test_a_plain_select_stays_a_lambda(session: LockingSession) -> None:
    statement = sa.lambda_stmt(lambda: sa.select(Order.id).where(Order.id == 1))
    assert session.scalars(statement).all() == [1]
    assert dict(session.held_locks) == {}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("listens", [False, True], ids=["alone", "with a listener"])
def test_a_with_for_update_is_adopted(
    session: LockingSession, read: Callable[..., Any], listens: bool
) -> None:
    if listens:
        sa.event.listen(session, "do_orm_execute", lambda _: None)
    statement = sa.lambda_stmt(lambda: sa.select(Order).where(Order.id == 1).with_for_update())
    order = read(session, statement)
    assert dict(session.held_locks) == {(Order, (1,)): ForUpdate}
    order.total += 1
    session.flush()
