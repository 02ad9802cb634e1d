"""The guard also checks changes that the program's own listeners make during a flush."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event, func, select
from sqlalchemy.orm import ORMExecuteState

from sa_doclock import LockingSession, UnlockedWrite
from sa_doclock.guard import write_guard
from tests.integration.guard.models import Comment, Customer, Line, Order, Tag, Tax
from tests.integration.guard.steps import hold, refused
from tests.support.rows import rows

pytestmark = pytest.mark.quick


MakeSession = Callable[..., LockingSession]
Stored = Callable[[Any, Any], Any]


@contextmanager
def listening(target: Any, name: str, function: Callable[..., None]) -> Iterator[None]:
    event.listen(target, name, function)
    try:
        yield
    finally:
        event.remove(target, name, function)


@contextmanager
def before_flush(session: LockingSession, action: Callable[[], Any]) -> Iterator[None]:
    """The program's listener, called after the guard's."""
    with listening(session, "before_flush", lambda *_: action()):
        yield


def test_a_row_that_a_later_listener_changes(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    session.add(Customer(id=9, name="Cleo"))

    def change() -> None:
        line.value = 11

    with before_flush(session, change), pytest.raises(UnlockedWrite, match="Line 1"):
        session.flush()


def test_a_row_that_was_looked_at_before_and_had_no_change(session: LockingSession) -> None:
    line = session.get_one(Line, 1)
    line.value = 10  # unchanged: the flush checks it, and finds no change

    def change() -> None:
        line.value = 11

    with before_flush(session, change), pytest.raises(UnlockedWrite, match="Line 1"):
        session.flush()


def test_a_row_that_was_permitted_and_is_moved_then(session: LockingSession) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)
    line.value = 11

    def move() -> None:
        line.order_id = 2

    with before_flush(session, move), pytest.raises(UnlockedWrite, match="Order 2"):
        session.flush()
    assert held


@pytest.mark.parametrize("held", [1, 2])
def test_an_expired_row_that_a_later_listener_moves(session: LockingSession, held: int) -> None:
    kept = hold(session, Order, held)
    line = session.get_one(Line, 1)
    session.add(Customer(id=9, name="Cleo"))

    def move() -> None:
        session.expire(line)
        line.order_id = 2

    missing = f"Order {3 - held}"
    with before_flush(session, move), pytest.raises(UnlockedWrite, match=missing):
        session.flush()
    assert kept


@pytest.mark.parametrize("first", [True, False])
def test_of_several_rows_one_that_a_later_listener_moves(
    session: LockingSession, first: bool
) -> None:
    lines = hold(session, Order, 1)[0].lines
    for line in lines:
        line.value += 1

    def move() -> None:
        lines[0 if first else 1].order_id = 2

    with before_flush(session, move), pytest.raises(UnlockedWrite, match="Order 2"):
        session.flush()


def change_in_a_flush(session: LockingSession) -> Line:
    """Return a line that a flush found permitted."""
    line = hold(session, Order, 1)[0].lines[0]
    line.value += 1
    session.flush()
    return line


@pytest.mark.parametrize("own", [True, False], ids=["another line", "no row of a document"])
def test_a_row_that_the_flush_before_was_permitted(make_session: MakeSession, own: bool) -> None:
    session = make_session(expire_on_commit=False)
    line = change_in_a_flush(session)
    session.commit()
    session.add(Comment(id=9))
    if own:
        hold(session, Order, 2)[0].lines[0].value += 1

    def change() -> None:
        line.value += 1

    with before_flush(session, change), pytest.raises(UnlockedWrite, match="Order 1"):
        session.flush()


def test_a_row_that_another_session_was_permitted(make_session: MakeSession) -> None:
    holder, session = make_session(expire_on_commit=False), make_session()
    line = change_in_a_flush(holder)
    holder.commit()
    holder.expunge(line)
    session.add(line)
    session.add(Comment(id=9))

    def change() -> None:
        line.value += 1

    with before_flush(session, change), pytest.raises(UnlockedWrite, match="Order 1"):
        session.flush()


@pytest.mark.parametrize("moved", [False, True])
def test_a_row_whose_hook_flushes_another_session(
    session: LockingSession, make_session: MakeSession, moved: bool
) -> None:
    held, line = hold(session, Order, 1), session.get_one(Line, 1)

    def flush_another(_mapper: object, _connection: object, changed: Line) -> None:
        other = make_session()
        other.get_one(Customer, 1).name = "Ann"  # unchanged: not a write
        other.flush()
        if moved:
            changed.order_id = 2

    line.value = 11
    with listening(Line, "before_update", flush_another):
        if moved:
            with pytest.raises(UnlockedWrite, match="Order 2"):
                session.flush()
        else:
            session.flush()
    assert held


def test_a_row_that_a_later_listener_adds_or_deletes(session: LockingSession) -> None:
    line = session.get_one(Line, 2)
    order = session.get_one(Order, 1)
    for action in (
        lambda: session.add(Line(id=9, order_id=1)),
        lambda: session.delete(line),
        lambda: order.lines.remove(line),
    ):
        session.add(Customer(id=9, name="Cleo"))
        with before_flush(session, action), pytest.raises(UnlockedWrite):
            session.flush()
        session.rollback()


def link(session: LockingSession) -> None:
    session.get_one(Order, 2).tags.append(session.get_one(Tag, 3))


def unlink(session: LockingSession) -> None:
    session.get_one(Tag, 2).orders = []


def link_to_another(session: LockingSession) -> None:
    session.get_one(Customer, 2).orders.append(session.get_one(Order, 2))


@pytest.mark.parametrize("action", [link, unlink, link_to_another])
def test_a_link_that_a_later_listener_makes(
    session: LockingSession, action: Callable[[LockingSession], None]
) -> None:
    kept = [session.get_one(entity, 2) for entity in (Order, Tag, Customer)]
    session.add(Customer(id=9, name="Cleo"))
    with (
        before_flush(session, lambda: action(session)),
        pytest.raises(UnlockedWrite, match="Order"),
    ):
        session.flush()
    assert kept


def test_under_the_lock_the_listener_may(session: LockingSession, stored: Stored) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)
    line.value = 10

    def change() -> None:
        line.value = 11

    with before_flush(session, change):
        session.commit()
    assert stored(Line.value, 1) == 11
    assert held


def test_nothing_stays_of_a_flush_that_was_refused_half_way(
    session: LockingSession, stored: Stored
) -> None:
    line, tax = session.get_one(Line, 1), session.get_one(Tax, 3)
    session.add(Customer(id=9, name="Cleo"))

    def change() -> None:
        line.value, tax.rate = 11, 8

    with before_flush(session, change), pytest.raises(UnlockedWrite):
        session.flush()
    session.rollback()
    assert stored(Customer.name, 9) is None
    assert stored(Line.value, 1) == 10


@pytest.mark.parametrize("held", [1, 2])
def test_a_hook_that_sends_a_new_row_elsewhere(session: LockingSession, held: int) -> None:
    kept = hold(session, Order, held)

    def send_to_the_second(_mapper: object, _connection: object, line: Line) -> None:
        line.order_id = 2

    session.add(Line(id=9, order_id=held))
    with listening(Line, "before_insert", send_to_the_second):
        if held == 2:
            session.commit()
        else:
            with pytest.raises(UnlockedWrite, match="Order 2"):
                session.flush()
    assert kept


@pytest.mark.parametrize("expired", [False, True])
def test_a_hook_that_moves_a_changed_row(session: LockingSession, expired: bool) -> None:
    held = hold(session, Order, 1)
    line = session.get_one(Line, 1)

    def move(_mapper: object, _connection: object, moved: Line) -> None:
        if expired:
            session.expire(moved, ["order_id"])
        moved.order_id = 2

    line.value = 11
    with (
        listening(Line, "before_update", move),
        pytest.raises(UnlockedWrite, match="Order 2"),
    ):
        session.flush()
    assert held


@rows("name, held", [*product(["before_insert", "before_update"], [1, 2])])
def test_a_hook_that_sends_a_row_where_only_the_database_knows(
    make_session: MakeSession, name: str, held: int
) -> None:
    """Its foreign key is an SQL expression, and nothing else in it changes."""

    def send_to_the_last(_mapper: object, _connection: object, line: Line) -> None:
        line.order_id = select(func.max(Order.id)).scalar_subquery()

    with make_session() as session:
        kept, line = hold(session, Order, *range(1, held + 1)), session.get_one(Line, 1)
        line.value += 0  # the flush checks it
        new = Line(id=9, order_id=1)
        session.add(new)
        with listening(Line, name, send_to_the_last):
            if held == 1:
                with pytest.raises(UnlockedWrite, match="Order 2"):
                    session.flush()
            else:
                session.flush()
                assert (new if name == "before_insert" else line).order_id == 2
        assert kept


def test_what_is_changed_after_a_flush_is_the_next_flushs(session: LockingSession) -> None:
    line = session.get_one(Line, 1)

    def change(*_: object) -> None:
        line.value = 11

    session.add(Customer(id=9, name="Cleo"))
    with listening(session, "after_flush_postexec", change):
        session.flush()
    with refused(session, Order, 1, "Line 1"):
        session.flush()


def test_a_flush_that_began_before_any_document_was_declared_is_guarded(
    session: LockingSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = session.get(Line, 1)
    assert changed is not None
    changed.value += 1
    monkeypatch.setattr(write_guard, "any_declared", lambda: False)  # a listener declares the first
    with pytest.raises(UnlockedWrite):
        session.flush()


# --------------------------------------------------------------------------------------------------
# The guard judges a statement as the program's do_orm_execute listeners left it.

LINES: Any = Line.__table__
STATEMENTS: dict[str, Any] = {
    "update": sa.update(Line).where(Line.order_id == 1).values(value=Line.value + 1),
    "table": LINES.update().where(LINES.c.order_no == 1).values(value=LINES.c.value + 1),
    "returning": sa.update(Line).where(Line.order_id == 1).values(value=7).returning(Line.id),
    "lambda": sa.lambda_stmt(lambda: sa.update(Line).where(Line.order_id == 1).values(value=3)),
}
OF_TWO: dict[str, Any] = {
    **dict.fromkeys(STATEMENTS, sa.update(Line).where(Line.order_id == 2).values(value=9)),
    "table": LINES.update().where(LINES.c.order_no == 2).values(value=9),
}


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_listener_that_writes_to_another_document_is_refused(
    session: LockingSession, name: str
) -> None:
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def of_another(state: ORMExecuteState) -> None:
        if state.is_update or state.is_delete:
            state.statement = OF_TWO[name]

    with refused(session, Order, 2):
        session.execute(STATEMENTS[name])


@pytest.mark.databases("sqlite", "postgresql")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_listener_that_leaves_it_alone_changes_nothing(
    session: LockingSession, name: str
) -> None:
    hold(session, Order, 1)
    seen: list[bool] = []
    sa.event.listen(session, "do_orm_execute", lambda state: seen.append(state.is_select))
    session.execute(STATEMENTS[name])
    assert False in seen
    session.commit()
    with refused(session, Order, 1):
        session.execute(STATEMENTS[name])


@pytest.mark.databases("sqlite", "postgresql")
def test_a_listener_may_write_by_itself(session: LockingSession) -> None:
    """The guard checks its statement too."""
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def also(state: ORMExecuteState) -> None:
        if state.is_update and not state.execution_options.get("also"):
            session.execute(OF_TWO["update"], execution_options={"also": True})

    with refused(session, Order, 2):
        session.execute(STATEMENTS["update"])


@pytest.mark.databases("sqlite", "postgresql")
def test_a_listener_that_narrows_it_needs_no_more_locks(session: LockingSession) -> None:
    hold(session, Order, 1)

    @sa.event.listens_for(session, "do_orm_execute")
    def narrow(state: ORMExecuteState) -> None:
        if state.is_update:
            statement: Any = state.statement
            state.statement = statement.where(Line.order_id == 1)

    session.execute(sa.update(Line).values(value=5))
