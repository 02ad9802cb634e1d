"""Objects returned by with_for_update() are as fresh as its lock, even if they were read before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy import event, inspect

from sa_doclock import LockingSession, LockOptions, UnsavedChanges
from tests.integration.locking.steps import add_ten, seen
from tests.support.models import Customer, Line, Order

pytestmark = pytest.mark.read_committed

Session = LockingSession
Take = Callable[[Session], Order]
STATEMENT = sa.select(Order).where(Order.id == 1).with_for_update()


def refreshed(session: Session) -> Order:
    order = session.get_one(Order, 1)
    session.refresh(order, with_for_update=True)
    return order


TAKES: dict[str, Take] = {
    "scalars": lambda session: session.scalars(STATEMENT).one(),
    "scalar": lambda session: session.scalar(STATEMENT) or pytest.fail("it is not there"),
    "execute": lambda session: session.execute(STATEMENT).one()[0],
    "of columns beside it": lambda session: session.execute(
        STATEMENT.add_columns(sa.literal(1))
    ).one()[0],
    "a shared lock": lambda session: session.scalars(
        sa.select(Order).where(Order.id == 1).with_for_update(read=True)
    ).one(),
    "stream": lambda session: session.scalars(STATEMENT, execution_options={"yield_per": 5}).one(),
    "Query": lambda session: session.query(Order).filter_by(id=1).with_for_update().one(),
    "get": lambda session: session.get_one(Order, 1, with_for_update=True),
    "refresh": refreshed,
}
FLUSHED = {name: take for name, take in TAKES.items() if name != "refresh"}  # it drops the change
COLLIDING = {name: take for name, take in FLUSHED.items() if name != "stream"}


@pytest.fixture(autouse=True)
def _read_before(session: Session, other: Session) -> None:
    """Make the session keep objects from before another session changed the document."""
    session.expire_on_commit = False
    kept = session.info["kept"] = [session.get_one(Order, 1), session.get_one(Order, 2)]
    session.info["lines"] = list(kept[0].lines)  # else they are freed, and return as new objects
    assert (*seen(kept[0]), kept[0].remark) == (30, [10, 20], "first")
    session.commit()
    add_ten(other)
    other.commit()


@pytest.mark.parametrize("take", TAKES.values(), ids=TAKES)
def test_no_update_is_lost(session: Session, other: Session, take: Take) -> None:
    order = take(session)
    assert seen(order) == (40, [20, 20])
    if not session.held_locks:  # streamed: the rows are locked one after another
        return
    session.rollback()
    with session.begin():
        take(session)
    assert other.get_one(Order, 1).total == 40


def test_nothing_more_is_sent_than_by_a_plain_session(session: Session) -> None:
    session.begin()
    sent: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: sent.append(args[2]))
    assert session.scalars(STATEMENT).one().total == 40
    assert session.info["kept"][1].total == 5  # not returned, so unchanged
    # SQL Server is asked for the transaction and its edition; these queries read no rows.
    assert len([one for one in sent if one.startswith("SELECT") and "lk_order" in one]) == 1


@pytest.mark.parametrize("take", FLUSHED.values(), ids=FLUSHED)
def test_a_pending_change_of_another_column_stays(session: Session, take: Take) -> None:
    order: Order = session.info["kept"][0]
    order.remark = "mine"
    with session.no_autoflush:
        take(session)
    assert (order.total, order.remark) == (40, "mine")
    assert inspect(order).attrs.remark.history.has_changes()


@pytest.mark.parametrize("take", COLLIDING.values(), ids=COLLIDING)
def test_a_change_of_what_another_has_changed_is_refused(session: Session, take: Take) -> None:
    order: Order = session.info["kept"][0]
    order.total = 31
    with session.no_autoflush, pytest.raises(UnsavedChanges, match=r"Order 1 .*'total'"):
        take(session)
    assert order.total == 31  # not lost


def test_listeners_learn_that_a_change_was_refused(session: Session) -> None:
    ended: list[object] = []
    event.listen(session, "before_lock", lambda *_: None)
    event.listen(session, "after_lock", lambda *reported: ended.append(reported[-1]))
    order: Order = session.info["kept"][0]
    order.total = 31
    with session.no_autoflush, pytest.raises(UnsavedChanges) as caught:
        session.scalars(STATEMENT).one()
    assert ended == [caught.value]


def test_what_the_statement_flushes_is_saved(session: Session) -> None:
    order: Order = session.info["kept"][1]
    order.total = 6
    assert session.scalars(STATEMENT).one().total == 40
    assert order.total == 6
    assert session.scalar(sa.select(Order.total).where(Order.id == 2)) == 6


@pytest.mark.parametrize("name", ["before_flush", "do_orm_execute"])
def test_a_listener_sees_the_pending_change_before_it_is_flushed(
    session: Session, name: str
) -> None:
    order: Order = session.info["kept"][1]
    order.total = 6
    seen_by_listener: list[int] = []
    event.listen(session, name, lambda *_: seen_by_listener.append(order.total))
    session.scalars(STATEMENT).one()
    assert seen_by_listener[0] == 6


def test_without_autoflush_a_listener_may_read_and_flush(session: Session) -> None:
    order: Order = session.info["kept"][1]
    first: Order = session.info["kept"][0]
    first.remark = "mine"
    read: list[int] = []

    @event.listens_for(session, "do_orm_execute", once=True)
    def look(_: object) -> None:
        read.append(order.total)
        session.flush()

    with session.no_autoflush:
        assert session.scalars(STATEMENT).one().total == 40
    assert (read, order.total, first.remark) == ([5], 5, "mine")
    assert first not in session.dirty  # its change was flushed


def test_what_a_listener_flushes_during_the_statement_is_what_the_session_had(
    session: Session,
) -> None:
    first: Order = session.info["kept"][0]
    first.remark = "mine"
    flushed: list[bool] = []

    def lock_another(*arguments: object) -> None:
        if str(arguments[2]).startswith("SELECT") and not flushed:
            flushed.append(False)
            session.get_one_entity(Customer, 1, LockOptions.ForUpdate)

    def flush(*_: object) -> None:
        session.flush()
        flushed.append(first not in session.dirty)

    event.listen(session.connection(), "before_cursor_execute", lock_another)
    event.listen(Customer, "load", flush)
    try:
        with session.no_autoflush:
            session.scalars(STATEMENT).one()
    finally:
        event.remove(Customer, "load", flush)
    assert flushed == [False, True]
    assert (first.remark, first in session.dirty) == ("mine", False)


def test_a_statement_that_fails_leaves_the_objects_as_they_were(session: Session) -> None:
    order: Order = session.info["kept"][0]
    session.begin()
    order.remark = "mine"
    wrong = STATEMENT.where(sa.text("no_such_column = 1"))
    with session.no_autoflush, pytest.raises(sa.exc.DBAPIError):
        session.scalars(wrong).all()
    state = inspect(order)
    assert (state.dict["remark"], state.dict["total"]) == ("mine", 30)
    assert state.attrs.remark.history.has_changes()
    session.rollback()
    assert order.total == 40


def test_a_line_with_a_pending_change_keeps_it(session: Session) -> None:
    line: Line = session.info["kept"][0].lines[1]
    line.value = 21
    with session.no_autoflush:
        session.scalars(STATEMENT).one()
    assert line.value == 21


@pytest.mark.parametrize("take", COLLIDING.values(), ids=COLLIDING)
def test_a_change_of_a_line_that_another_has_changed_is_refused(
    session: Session, take: Take
) -> None:
    line: Line = session.info["kept"][0].lines[0]
    line.value = 11
    with session.no_autoflush, pytest.raises(UnsavedChanges, match=r"Order 1 .*'value' of Line 1 "):
        take(session)
    assert line.value == 11  # not lost
    assert not session.held_locks


def test_a_delete_of_what_another_has_changed_is_refused(session: Session) -> None:
    order: Order = session.info["kept"][0]
    for doomed, changed in ((order, "'total'"), (session.info["lines"][0], "'value' of Line 1")):
        session.delete(doomed)
        for overwrites in (False, True):
            options = {"populate_existing": overwrites}
            with (
                session.no_autoflush,
                pytest.raises(UnsavedChanges, match=f"{changed} .* or delete"),
            ):
                session.scalars(STATEMENT, execution_options=options).one()
        assert doomed in session.deleted  # not lost
        assert not session.held_locks
        session.add(doomed)


def test_a_line_that_nobody_has_changed_is_deleted(session: Session) -> None:
    session.delete(session.info["lines"][1])
    with session.no_autoflush:
        order = session.scalars(STATEMENT).one()
    session.flush()
    assert seen(order) == (40, [20])


def test_of_a_locked_document_nothing_is_compared(session: Session) -> None:
    session.scalars(STATEMENT).one()
    line: Line = session.info["kept"][0].lines[0]
    line.value += 1
    sent: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *args: sent.append(args[2]))
    with session.no_autoflush:
        session.scalars(STATEMENT).one()
    assert not [one for one in sent if "lk_line" in one]
    assert line.value == 21


@pytest.mark.parametrize("changes", [False, True])
def test_a_listener_may_read_the_document_before_it_is_locked(
    session_factory: Callable[[], Session], other: Session, changes: bool
) -> None:
    kept: list[object] = []
    with session_factory() as session, session.no_autoflush:

        @event.listens_for(session, "do_orm_execute", once=True)
        def read(_state: object) -> None:
            order = session.get_one(Order, 1)
            kept.extend([order, *order.lines])
            if changes:
                order.total += 1
            add_ten(other)
            other.commit()

        if changes:
            with pytest.raises(UnsavedChanges, match="total"):
                session.scalars(STATEMENT).one()
        else:
            assert seen(session.scalars(STATEMENT).one()) == (50, [30, 20])


def test_a_changed_line_is_compared_in_the_database_of_the_statement(session: Session) -> None:
    bind = {"bind": session.get_bind()}
    with Session(autoflush=False) as unbound:
        line = unbound.scalars(sa.select(Line).where(Line.id == 1), bind_arguments=bind).one()
        line.value += 1
        unbound.scalars(STATEMENT, bind_arguments=bind).one()
        assert [*unbound.held_locks] == [(Order, (1,))]
