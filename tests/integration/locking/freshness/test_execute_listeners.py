"""The session checks a locking statement again after a do_orm_execute listener changes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import (
    Session,
    column_property,
    joinedload,
    registry,
    selectinload,
    subqueryload,
    undefer,
    with_loader_criteria,
)

from sa_doclock import (
    LockingSession,
    LockMisuse,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
    claim_each,
    with_lock,
)
from tests.integration.locking.steps import add_ten, save, seen
from tests.support.actors import Actor
from tests.support.models import Contract, Lease, Line, Order, Ticket
from tests.support.rows import rows
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.own_logic

ForUpdate, SharedRead = LockOptions.ForUpdate, LockOptions.SharedRead
Listener = Callable[[Any], Any]
_orders: Any = Order.__table__


class Counted:
    """An order with the number of its lines, loaded only with an option."""

    id: Any
    lines: Any


registry().map_imperatively(
    Counted,
    _orders,
    properties={
        "lines": column_property(
            sa.select(sa.func.count(Line.id))
            .where(Line.order_id == _orders.c.id)
            .scalar_subquery(),
            deferred=True,
        )
    },
)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    event.listen(LockingSession, "do_orm_execute", listener)
    try:
        yield
    finally:
        event.remove(LockingSession, "do_orm_execute", listener)


def adding(option: Any) -> Listener:
    """Return a listener that adds the option to every SELECT of the program."""

    def listen(state: Any) -> None:
        if state.is_select and not state.is_relationship_load and not state.is_column_load:
            state.statement = state.statement.options(option)

    return listen


WAYS: dict[str, Callable[..., Any]] = {
    "get_entity": lambda session, entity, lock: session.get_entity(entity, 1, lock),
    "get_entities": lambda session, entity, lock: session.get_entities(entity, [1, 2], lock),
    "entity_set": lambda session, entity, lock: session.scalars(
        session.entity_set(entity, lock).where(entity.id == 1)
    ).all(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("lock", [ForUpdate, SharedRead])
@pytest.mark.parametrize(
    ("entity", "option"),
    [
        (Order, joinedload(Order.lines)),
        (Order, subqueryload(Order.lines)),
        (Contract, joinedload(Contract.clauses)),
        (Lease, joinedload(Lease.clauses)),
        (Counted, undefer(Counted.lines)),
    ],
)
def test_details_by_the_locking_statement_are_refused(
    session: LockingSession, way: Callable[..., Any], entity: Any, option: Any, lock: LockOptions
) -> None:
    with (
        listening(adding(option)),
        pytest.raises(LockNotSupported, match="a do_orm_execute listener has added"),
    ):
        way(session, entity, lock)
    assert dict(session.held_locks) == {}
    assert not session.in_transaction()


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("entity", [Order, Lease, Ticket])
def test_other_options_are_honoured(
    session: LockingSession, way: Callable[..., Any], entity: Any
) -> None:
    option = (
        selectinload(Order.lines)
        if entity is Order
        else selectinload(Lease.clauses)
        if entity is Lease
        else undefer("*")
    )
    with listening(adding(option)):
        way(session, entity, ForUpdate)
    assert session.held_locks


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_criteria_leave_out_what_they_say(session: LockingSession, way: Callable[..., Any]) -> None:
    with listening(adding(with_loader_criteria(Order, Order.total < 10))):
        found = way(session, Order, ForUpdate)
    found = found if isinstance(found, list) else [found] if found else []
    assert all(order.id == 2 for order in found)
    assert (Order, (1,)) not in session.held_locks


@pytest.mark.not_databases("sqlite", "mssql")  # there no session waits for a row
def test_lines_are_not_older_than_the_lock(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    with listening(adding(selectinload(Order.lines))):
        alice.does(add_ten)
        step = bob.starts(lambda s: seen(s.get_one_entity(Order, 1, ForUpdate)))
        wait_until_blocked(waiter=bob, holder=alice, step=step)
        alice.does(save)
        assert step.result() == (40, [20, 20])


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("lock", [ForUpdate, LockOptions.SnapshotRead])
def test_an_answer_without_the_database_is_no_lock(
    session: LockingSession, way: Callable[..., Any], lock: LockOptions
) -> None:
    if way is WAYS["entity_set"] and lock is LockOptions.SnapshotRead:
        pytest.skip("a set has no snapshot")
    cached = session.execute(sa.select(Order).where(Order.id == 1)).freeze()
    session.rollback()

    def answer(state: Any) -> Any:
        return None if state.is_column_load else cached()

    with listening(answer), pytest.raises(LockMisuse, match="answered the locking statement"):
        way(session, Order, lock)
    assert dict(session.held_locks) == {}


@pytest.mark.not_databases("sqlite")  # there the transaction is the lock
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_statement_without_the_lock_is_no_lock(
    session: LockingSession, way: Callable[..., Any]
) -> None:
    def replace(state: Any) -> None:
        state.statement = sa.select(Order).where(Order.id == 1)

    with listening(replace), pytest.raises(LockMisuse, match="without the lock"):
        way(session, Order, ForUpdate)
    assert dict(session.held_locks) == {}


def test_an_invoked_statement_is_checked_too(session: LockingSession) -> None:
    def invoke(state: Any) -> Any:
        return state.invoke_statement(state.statement.options(joinedload(Order.lines)))

    with listening(invoke), pytest.raises(LockNotSupported):
        session.get_entity(Order, 1, ForUpdate)
    with listening(lambda state: state.invoke_statement()):
        assert session.get_entity(Order, 1, ForUpdate) is not None


def test_claims_are_checked(session_factory: Callable[[], LockingSession]) -> None:
    with (
        listening(adding(with_loader_criteria(Order, Order.id > 1))),
    ):
        rows = []
        for claim in claim_each(session_factory, sa.select(Order)):
            with claim as order:
                rows.append(order.id)
    assert rows == [2]


@pytest.mark.parametrize("held", [False, True], ids=["new", "held"])
def test_a_listener_may_execute_a_statement(session: LockingSession, held: bool) -> None:
    if held:
        session.get_entity(Order, 1, lock=ForUpdate)
        session.expire_all()
    seen_lines: list[Any] = []

    def look_up(state: Any) -> None:
        if not state.is_column_load and not seen_lines:
            seen_lines.append(None)
            seen_lines.append(state.session.scalar(sa.select(sa.func.count(Line.id))))

    event.listen(session, "do_orm_execute", look_up)
    assert session.get_entity(Order, 1, lock=ForUpdate)
    assert len(seen_lines) == 2
    assert (Order, (1,)) in session.held_locks


@pytest.mark.not_databases("sqlite")  # the file stays locked for the second try too
def test_a_listener_that_tries_again_has_the_lock(
    session: LockingSession, other: LockingSession
) -> None:
    def again(state: Any) -> Any:
        try:
            with state.session.begin_nested():
                return state.invoke_statement()
        except LockNotAvailable:
            other.rollback()
            return state.invoke_statement()

    other.get_one_entity(Order, 1, ForUpdate)
    session.begin()
    with listening(again):
        order = session.get_one_entity(Order, 1, ForUpdate, lock_timeout=0)
    assert session.held_locks == {(Order, (1,)): ForUpdate}
    order.total = 31
    session.commit()


# --------------------------------------------------------------------------------------------------
# A do_orm_execute listener takes a lock before a statement without a lock is sent.

Act = Callable[[LockingSession], Any]
FIRST_ORDER = sa.select(Order).where(Order.id == 1)

TAKES: dict[str, Act] = {
    "get_entity": lambda session: session.get_one_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1], ForUpdate)[0],
    "with_lock": lambda session: session.scalars(with_lock(FIRST_ORDER, ForUpdate)).one(),
    "with_for_update": lambda session: session.scalars(FIRST_ORDER.with_for_update()).one(),
}
STATEMENTS: dict[str, Act] = {
    "select": lambda session: session.scalars(sa.select(Ticket)).all(),
    "columns": lambda session: session.execute(sa.select(Line.value)).all(),
    "past us": lambda session: Session.execute(session, sa.select(Ticket)).all(),
    "get": lambda session: session.get(Ticket, 1),
    "get_entities": lambda session: session.get_entities(Ticket, [1], LockOptions.None_),
    "text": lambda session: session.execute(sa.text("SELECT 1")).all(),
    "an expired object": lambda session: session.info["order"].total,
    "a collection": lambda session: session.info["order"].lines,
    "the same rows": lambda session: session.scalars(sa.select(Order)).all(),
    "with_for_update": lambda session: session.scalars(FIRST_ORDER.with_for_update()).all(),
    "update": lambda session: session.execute(
        sa.update(Order).where(Order.id == 1).values(total=Order.total)
    ),
}


class LocksListener:
    """Takes a lock before the first statement that triggers it."""

    def __init__(self, take: Act) -> None:
        self._take: Act | None = take
        self.taken: Any = None

    def __call__(self, state: Any) -> None:
        take, self._take = self._take, None  # its own statements trigger it too
        if take is not None:
            self.taken = take(state.session)


@rows(
    "take, statement",
    [
        *[(TAKES["get_entity"], statement) for statement in STATEMENTS.values()],
        *[(take, STATEMENTS["select"]) for take in TAKES.values()],
        *[(take, STATEMENTS["past us"]) for take in TAKES.values()],
    ],
    ids=[*STATEMENTS, *TAKES, *(f"past us, {take}" for take in TAKES)],
)
def test_it_is_held_and_fresh(
    session_factory: Callable[[], LockingSession], take: Act, statement: Act
) -> None:
    with session_factory() as session, session_factory() as other:
        order = session.info["order"] = session.get_one(Order, 1)
        before = seen(order)
        session.rollback()
        add_ten(other)
        save(other)
        listener, called = LocksListener(take), list[Any]()
        event.listen(session, "do_orm_execute", listener)
        event.listen(session, "do_orm_execute", called.append)
        statement(session)
        assert called  # the later listeners
        assert listener.taken is order
        assert (Order, (1,)) in session.held_locks
        after = before[0] + 10, [before[1][0] + 10, *before[1][1:]]
        assert seen(order) == after
        order.lines[0].value -= 10  # unchanged, for the next row
        order.total -= 10
        session.commit()
        assert session.scalars(sa.select(Line.value).where(Line.id == 1)).one() == before[1][0]


def test_it_is_refused_within_a_lock_before_anything_is_sent(session: LockingSession) -> None:
    event.listen(session, "do_orm_execute", LocksListener(TAKES["get_entity"]))
    with pytest.raises(LockMisuse, match="take it after that call returns"):
        session.get_entity(Ticket, 1, ForUpdate)
    assert not session.in_transaction()


def test_nothing_is_written_in_the_snapshot_of_a_listener(session: LockingSession) -> None:
    write = sa.update(Ticket).values(total=7)
    listener = LocksListener(lambda session: session.get_entity(Order, 1, LockOptions.SnapshotRead))
    event.listen(session, "do_orm_execute", listener)
    with pytest.raises(WrongIsolation):
        session.execute(write)
    session.rollback()
    session.get_entity(Order, 1, LockOptions.SnapshotRead)
    event.listen(session, "do_orm_execute", lambda state: setattr(state, "statement", write))
    with pytest.raises(WrongIsolation):
        session.execute(sa.select(Ticket))
