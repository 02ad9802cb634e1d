"""with_for_update() is a real lock on each database, listed in held_locks, known to the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import InvalidRequestError, OperationalError
from sqlalchemy.orm import Session, aliased, joinedload, selectinload

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
)
from tests.integration.locking.steps import finds_held, recorded, roll_back
from tests.support.actors import Actor
from tests.support.models import Customer, Invoice, Lease, Line, Order, Voucher
from tests.support.waits import wait_until_blocked

pytestmark = [pytest.mark.quick, pytest.mark.read_committed]

ForUpdate, SharedRead, NoWait, NoKey = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.NoWait,
    LockOptions.NoKey,
)
FIRST = sa.select(Order).where(Order.id == 1)
HELD = {(Order, (1,)): ForUpdate}
Take = Callable[[Any], Any]


def _for_update(statement: sa.Select[Any]) -> sa.Select[Any]:
    return statement.with_for_update()


def _refresh(session: Session) -> Order:
    order = session.get_one(Order, 1)
    session.refresh(order, with_for_update=True)
    return order


def _get_loaded(session: Session) -> Order | None:
    session.get_one(Order, 1)
    return session.get(Order, 1, with_for_update=True)


class OwnSelect(sa.Select[Any]):
    """A select of another library's class, like SQLModel's."""

    inherit_cache = True


WAYS: dict[str, Take] = {
    "execute": lambda s: s.execute(FIRST.with_for_update()).scalar_one(),
    "scalars": lambda s: s.scalars(FIRST.with_for_update()).one(),
    "scalar": lambda s: s.scalar(FIRST.with_for_update()),
    "of": lambda s: s.scalar(FIRST.with_for_update(of=Order)),
    "of a column": lambda s: s.scalar(FIRST.with_for_update(of=Order.id)),
    "of a table": lambda s: s.scalar(FIRST.with_for_update(of=Order.__table__)),
    "nowait": lambda s: s.scalar(FIRST.with_for_update(nowait=True)),
    "Query": lambda s: s.query(Order).filter_by(id=1).with_for_update().one(),
    "Query.first": lambda s: s.query(Order).filter_by(id=1).with_for_update().first(),
    "get": lambda s: s.get(Order, 1, with_for_update=True),
    "get with options": lambda s: s.get(Order, 1, with_for_update={"of": Order}),
    "get_one": lambda s: s.get_one(Order, 1, with_for_update=True),
    "get what is loaded": _get_loaded,
    "refresh": _refresh,
    "lambda_stmt": lambda s: s.scalar(sa.lambda_stmt(lambda: FIRST) + _for_update),
    "aliased": lambda s: s.scalar(
        sa.select(o := aliased(Order)).where(o.id == 1).with_for_update(of=o)
    ),
    "join": lambda s: s.scalars(
        sa.select(Order).join(Order.lines).where(Line.value > 5, Order.id == 1).with_for_update()
    ).first(),
    "joinedload": lambda s: (
        s.scalars(FIRST.options(joinedload(Order.lines)).with_for_update(of=Order)).unique().one()
    ),
    "a select of another class": lambda s: s.scalar(
        OwnSelect(Order).where(Order.id == 1).with_for_update()
    ),
    "selectinload": lambda s: s.scalar(FIRST.options(selectinload(Order.lines)).with_for_update()),
}
each_way = pytest.mark.parametrize("take", WAYS.values(), ids=WAYS)


@pytest.mark.own_logic
@each_way
def test_it_is_held_and_recorded(
    session: LockingSession, other: LockingSession, take: Take
) -> None:
    order = take(session)
    assert isinstance(order, Order)
    assert dict(session.held_locks) == HELD
    assert finds_held()(other)
    session.rollback()
    assert not session.held_locks
    assert not finds_held()(other)


def test_the_second_waits_for_the_first(
    alice: Actor[LockingSession], bob: Actor[LockingSession]
) -> None:
    alice.does(WAYS["scalar"])
    queued = bob.starts(WAYS["get"])
    wait_until_blocked(waiter=bob, holder=alice, step=queued)
    alice.does(roll_back)
    queued.result()


@pytest.mark.own_logic
@pytest.mark.databases("postgresql", "mysql", "mariadb")
@each_way
def test_the_same_is_sent_as_by_a_plain_session(engine: sa.Engine, take: Take) -> None:
    texts = []
    for kind in (Session, LockingSession):
        with kind(engine) as session, recorded(engine) as statements:
            take(session)
        texts.append(list(statements))
    plain, ours = texts
    assert ours[: len(plain)] == plain
    # Parts loaded by a join may be older than the lock, and are read again.
    assert len(ours) - len(plain) == (take is WAYS["joinedload"])


def test_the_kinds_of_locks(session: LockingSession) -> None:
    kinds: list[tuple[dict[str, Any], LockOptions]] = [
        ({"read": True}, SharedRead),
        ({"key_share": True}, ForUpdate | NoKey),
        ({"nowait": True}, ForUpdate),
    ]
    for how, lock in kinds:
        session.scalars(FIRST.with_for_update(**how)).one()
        assert dict(session.held_locks) == {(Order, (1,)): lock}
        session.rollback()


@pytest.mark.databases("postgresql")
def test_for_key_share_is_no_lock_of_a_document(session: LockingSession) -> None:
    session.scalars(FIRST.with_for_update(read=True, key_share=True)).one()
    assert not session.held_locks


def test_skip_locked(session: LockingSession, other: LockingSession, documents: Any) -> None:
    every = sa.select(Order).order_by(Order.id).with_for_update(skip_locked=True)
    if documents.name == "sqlite":
        with pytest.raises(LockNotSupported, match=r"^Order"):
            session.scalars(every).all()
        assert not session.in_transaction()
        return
    other.get_one_entity(Order, 1, ForUpdate)
    assert [order.id for order in session.scalars(every)] == [2]
    assert list(session.held_locks) == [(Order, (2,))]


def test_nowait_is_a_typed_error(session: LockingSession, other: LockingSession) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order") as caught:
        session.scalars(FIRST.with_for_update(nowait=True)).one()
    assert isinstance(caught.value, OperationalError)
    assert caught.value.entity is Order
    assert not session.held_locks


def test_of_says_which_headers(session: LockingSession) -> None:
    both = sa.select(Invoice, Customer).join(Invoice.customer).where(Invoice.id == 1)
    session.execute(both.with_for_update(of=Customer)).all()
    assert dict(session.held_locks) == {(Customer, (1,)): ForUpdate}
    session.rollback()
    session.execute(both.with_for_update()).all()
    assert session.held_locks.keys() == {(Customer, (1,)), (Invoice, (1,))}


def test_joined_inheritance(session: LockingSession, other: LockingSession) -> None:
    session.scalars(sa.select(Lease).where(Lease.id == 1).with_for_update(of=Lease)).one()
    assert [key for _, key in session.held_locks] == [(1,)]
    assert finds_held(Lease, 1)(other)


def test_columns_are_locked_and_not_listed(session: LockingSession, other: LockingSession) -> None:
    session.execute(sa.select(Order.total).where(Order.id == 1).with_for_update()).one()
    assert not session.held_locks
    assert finds_held()(other)


def test_the_columns_of_the_key_are_listed(session: LockingSession, other: LockingSession) -> None:
    order = session.get_one(Order, 1)
    order.lines  # noqa: B018  # loads them
    found = session.execute(sa.select(Order.total, Order.id).with_for_update()).all()
    assert sorted(key for _, key in found) == [1, 2]
    assert session.held_locks.keys() == {(Order, (1,)), (Order, (2,))}
    assert {"total", "lines"} <= sa.inspect(order).unloaded  # read again under the lock
    assert finds_held()(other)


def test_half_of_a_key_is_not_listed(session: LockingSession) -> None:
    session.execute(sa.select(Voucher.year).with_for_update()).all()
    assert not session.held_locks
    session.execute(sa.select(Voucher.number, Voucher.year).with_for_update()).all()
    assert all(entity is Voucher for entity, _ in session.held_locks)
    assert session.held_locks


def test_a_result_is_what_sqlalchemy_gives(session: LockingSession) -> None:
    statement = FIRST.options(joinedload(Order.lines)).with_for_update(of=Order)
    with pytest.raises(InvalidRequestError, match="unique"):
        session.scalars(statement).all()
    assert len(session.scalars(statement).unique().all()) == 1
    pair = sa.select(Order, Line).join(Order.lines).order_by(Line.id).with_for_update(of=Order)
    assert [line.id for _, line in session.execute(pair)] == [1, 2, 3]
    result = session.execute(sa.select(Order).order_by(Order.id).with_for_update())
    assert [order.id for order in result.yield_per(1).scalars()] == [1, 2]
    result = session.execute(sa.select(Order).order_by(Order.id).with_for_update())
    assert [len(result.fetchmany(1)) for _ in range(3)] == [1, 1, 0]
    assert session.execute(FIRST.with_for_update()).mappings().one()["Order"].id == 1


def test_what_is_streamed_is_locked_and_not_listed(session: LockingSession) -> None:
    statement = sa.select(Order).with_for_update().execution_options(yield_per=1)
    assert len(session.scalars(statement).all()) == 2
    assert not session.held_locks


def test_a_lock_of_ours_afterwards_reads_again(
    session: LockingSession, elsewhere: Callable[..., list[Any]]
) -> None:
    session.expire_on_commit = False
    order = session.get_one(Order, 1)
    assert [line.value for line in order.lines] == [10, 20]
    session.commit()
    elsewhere(
        sa.update(Order).where(Order.id == 1).values(total=31),
        sa.update(Line).where(Line.id == 1).values(value=11),
    )
    session.scalars(FIRST.with_for_update()).one()
    assert (order.total, order.lines[0].value) == (31, 11)
    assert session.get_one_entity(Order, 1, ForUpdate) is order
    assert (order.total, order.lines[0].value) == (31, 11)
    assert dict(session.held_locks) == HELD


def test_it_can_be_turned_off(engine: sa.Engine) -> None:
    with LockingSession(engine, adopt_for_update=False) as session:
        session.scalars(FIRST.with_for_update()).one()
        assert not session.held_locks


# --------------------------------------------------------------------------------------------------
# with_for_update() locks like any other lock: what that adds, and what the program still does.

FIRST_SAME_SEQUENCE = sa.select(Order).where(Order.id == 1).with_for_update()
CUSTOMER = sa.select(Customer).where(Customer.id == 1).with_for_update()


def nowait(session: LockingSession) -> Any:
    return session.scalars(FIRST_SAME_SEQUENCE.with_for_update(nowait=True)).one()


def test_a_listener_of_its_autoflush_may_lock(session: LockingSession) -> None:
    order = session.get_one(Order, 2)
    order.remark = "changed"

    def lock_customer(session: LockingSession, *_: Any) -> None:
        session.get_one_entity(Customer, 1, ForUpdate)

    event.listen(session, "before_flush", lock_customer)
    session.scalars(FIRST_SAME_SEQUENCE).one()
    assert dict(session.held_locks) == {(Customer, (1,)): ForUpdate, (Order, (1,)): ForUpdate}


def test_a_listener_of_a_lock_may_execute_it(session: LockingSession) -> None:
    granted: list[Any] = []

    def lock_customer(_order: Order, context: Any) -> None:
        context.session.scalars(CUSTOMER).one()

    event.listen(Order, "load", lock_customer)
    event.listen(session, "lock_acquired", lambda _, document, *__: granted.append(document))
    try:
        session.get_one_entity(Order, 1, ForUpdate)
    finally:
        event.remove(Order, "load", lock_customer)
    assert granted == [(Customer, (1,)), (Order, (1,))]  # each by its own call, once


@pytest.mark.not_databases("sqlite")  # there the transaction takes the lock, and raises the error
def test_a_refusal_is_left_to_the_program(session: LockingSession, other: LockingSession) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    with pytest.raises(LockNotAvailable, match=r"^Order rows FOR UPDATE NOWAIT on ") as caught:
        nowait(session)
    assert caught.value.waited > 0
    assert session.in_transaction()
    session.rollback()
    other.rollback()
    assert nowait(session).id == 1
    del kept


def test_a_batch_executes_it_once_and_as_it_is(engine: sa.Engine) -> None:
    with LockingSession(engine, priority="batch") as batch, recorded(engine) as sent:
        assert batch.scalars(FIRST_SAME_SEQUENCE).one() is nowait(batch)
    assert not [one for one in sent if "SAVEPOINT" in one]


@pytest.mark.databases("mysql", "mariadb")
def test_a_transaction_that_the_server_keeps_goes_on(
    session: LockingSession, other: LockingSession
) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    mine = session.get_one_entity(Order, 2, ForUpdate)
    mine.remark = "saved"
    with pytest.raises(LockNotAvailable):
        nowait(session)
    session.commit()
    assert other.scalar(sa.select(Order.remark).where(Order.id == 2)) == "saved"
    del kept


@pytest.mark.databases("postgresql")
def test_it_learns_who_holds_the_lock(engine: sa.Engine, other: LockingSession) -> None:
    kept = other.get_one_entity(Order, 1, ForUpdate)
    with LockingSession(engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable, match="held by") as caught:
            nowait(session)
        assert len(caught.value.blockers) == 1
    del kept


# --------------------------------------------------------------------------------------------------
# A with_for_update() that SQLAlchemy would not send is refused before anything is sent.

LOCKED = sa.select(Order).from_statement(FIRST.with_for_update())
UNIONS: dict[str, Any] = {
    "a union": sa.union(FIRST, FIRST).with_for_update(),
    "from a union": sa.select(Order).from_statement(sa.union_all(FIRST, FIRST).with_for_update()),
}


@pytest.mark.parametrize("statement", UNIONS.values(), ids=UNIONS)
def test_of_a_union(session: LockingSession, statement: Any) -> None:
    sent: list[str] = []
    event.listen(session.get_bind(), "after_cursor_execute", lambda *args: sent.append(args[2]))
    with pytest.raises(LockNotSupported, match="UNION"):
        session.execute(statement)
    assert not sent


def test_from_a_statement(session: LockingSession, other: LockingSession) -> None:
    assert session.scalars(LOCKED).one().total == 30
    assert finds_held()(other)


def test_a_union_without_a_lock_is_executed(session: LockingSession) -> None:
    found = session.scalars(sa.select(Order).from_statement(sa.union(FIRST, FIRST))).all()
    assert [order.id for order in found] == [1]
