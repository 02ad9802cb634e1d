"""Each way to write a document respects check-outs, or is documented as a way past them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    CheckedOut,
    CheckoutLost,
    DocumentGate,
    LockingSession,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    UnlockedWrite,
    atomic_update,
    run_transaction,
)
from tests.integration.checkouts.models import CHECKOUTS, Line, Memo, Order, expire
from tests.integration.checkouts.test_statements import sent
from tests.integration.gate.queueing import wait_until_queued
from tests.support.actors import Actor
from tests.support.waits import wait_until_blocked

pytestmark = pytest.mark.own_logic

ForUpdate = LockOptions.ForUpdate
Factory = sessionmaker[LockingSession]
TABLE: Any = Order.__table__
ADDS = sa.update(Order).where(Order.id == 1).values(total=Order.total + 1)

ATOMIC: dict[str, Callable[[], Any]] = {
    "class": lambda: ADDS,
    "table": lambda: sa.update(TABLE).where(TABLE.c.id == 1).values(total=TABLE.c.total + 1),
    "all rows": lambda: sa.update(Order).values(total=Order.total + 1),
    "subquery": lambda: (
        sa.update(Order).where(Order.id.in_(sa.select(Line.order_id))).values(total=Order.total + 1)
    ),
    "parameter": lambda: (
        sa.update(Order).where(Order.id == sa.bindparam("which")).values(total=Order.total + 1)
    ),
}
#: Each way past a lock by key, and its outcome.
WAYS: dict[str, Callable[[LockingSession], Any]] = {
    "update": lambda s: s.execute(sa.update(Order).filter_by(id=1).values(total=7)),
    "update of parts": lambda s: s.execute(sa.update(Line).values(value=7)),
    "delete of parts": lambda s: s.execute(sa.delete(Line)),
    "insert of a part": lambda s: s.execute(sa.insert(Line).values(id=9, order_id=1, value=7)),
    "update by keys": lambda s: s.execute(sa.update(Order), [{"id": 1, "total": 7}]),
    "bulk_update_mappings": lambda s: s.bulk_update_mappings(Order, [{"id": 1, "total": 7}]),
    "bulk_insert_mappings": lambda s: s.bulk_insert_mappings(
        Line, [{"id": 9, "order_id": 1, "value": 7}]
    ),
    "bulk_save_objects": lambda s: s.bulk_save_objects([Line(id=9, order_id=1, value=7)]),
    "flush": lambda s: flush(s),  # noqa: PLW0108  # defined below
}


def flush(session: LockingSession) -> None:
    session.get_one(Order, 1).total = 7
    session.flush()


def taken(factory: Factory, ident: int = 1) -> int:
    with factory() as session:
        epoch = session.check_out(Order, ident, "ann").epoch
        session.commit()
    return epoch


def total(engine: sa.Engine, ident: int = 1) -> int:
    with engine.connect() as connection:
        return int(connection.scalar(sa.select(TABLE.c.total).where(TABLE.c.id == ident)) or 0)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("way", ATOMIC)
@pytest.mark.parametrize("guard", ["raise", "off"])
def test_an_atomic_update_asks(engine: sa.Engine, factory: Factory, way: str, guard: Any) -> None:
    epoch = taken(factory)
    statement, given = atomic_update(ATOMIC[way]()), {"which": 1} if way == "parameter" else {}
    make = sessionmaker(engine, class_=LockingSession, checkouts=CHECKOUTS, guard=guard)
    with make() as other:
        with pytest.raises(CheckedOut, match="'ann' has it checked out") as caught:
            other.execute(statement, given)
        assert (caught.value.entity, caught.value.ident) == (Order, 1)
        assert not other.in_transaction()
        assert total(engine) == 0
    with make() as ann, ann.begin():
        ann.get_entity(Order, 1, ForUpdate, checkout=epoch)
        ann.execute(statement, given)
    assert total(engine) == 1
    expire(engine)
    with make() as other, other.begin():
        other.execute(statement, given)
    assert total(engine) == 2


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_an_atomic_update_of_another_object_for_the_table_asks(
    engine: sa.Engine, factory: Factory
) -> None:
    taken(factory)
    other = TABLE.to_metadata(sa.MetaData())
    adds = sa.update(other).where(other.c.id == 1).values(total=other.c.total + 1)
    with factory() as session, pytest.raises(CheckedOut):
        session.execute(atomic_update(adds))
    assert total(engine) == 0


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_in_a_transaction_of_the_caller_it_writes_nothing(
    engine: sa.Engine, factory: Factory
) -> None:
    taken(factory)
    with factory() as other:
        other.get_one_entity(Memo, 1, ForUpdate).text = "x"
        with pytest.raises(CheckedOut):
            other.execute(atomic_update(ADDS))
        assert other.execute(atomic_update(ADDS.where(Order.id == 7))).rowcount == 0  # type: ignore[attr-defined]
        assert {entity for entity, _ in other.held_locks} == {Memo}
        other.commit()
    assert total(engine) == 0


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_who_waits_sees_the_check_out_that_came_meanwhile(
    alice: Actor[LockingSession], bob: Actor[LockingSession], request: pytest.FixtureRequest
) -> None:
    if "sqlite" in request.node.name:
        pytest.skip("the file has one lock")
    alice.does(lambda s: s.check_out(Order, 1, "alice"))
    added = bob.starts(lambda s: s.execute(atomic_update(ADDS)))
    wait_until_blocked(waiter=bob, holder=alice, step=added)
    alice.does(lambda s: s.commit())
    with pytest.raises(CheckedOut):
        added.result()


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.databases("postgresql", "mysql", "mariadb")
def test_a_row_that_comes_after_the_comparison(engine: sa.Engine, factory: Factory) -> None:
    """It may be checked out: the transaction saves nothing, and can be run again."""
    moved = sa.update(Order).where(Order.total == 0).values(total=Order.total + 1)
    with engine.begin() as connection:
        connection.execute(sa.update(TABLE).where(TABLE.c.id == 3).values(total=5))
    with factory() as session:
        done: list[str] = []

        def bring_in(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if "co_checkouts" in statement and not done:
                done.append(statement)
                with engine.begin() as connection:
                    connection.execute(sa.update(TABLE).where(TABLE.c.id == 3).values(total=0))

        sa.event.listen(engine, "after_cursor_execute", bring_in)
        with pytest.raises(SnapshotConflict, match="run the whole transaction again") as caught:
            session.execute(atomic_update(moved))
        assert caught.value.retryable
        with pytest.raises(Exception, match="rollback"):
            session.commit()
    assert total(engine, 1) == 0


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_of_other_classes_and_sessions_it_sends_nothing_more(
    engine: sa.Engine, factory: Factory
) -> None:
    plain = sessionmaker(engine, class_=LockingSession)
    memo = atomic_update(sa.update(Memo).values(text=Memo.text + "x"))
    for make, statement in ((factory, memo), (plain, atomic_update(ADDS))):
        with make() as session:
            session.execute(sa.select(Memo.id))
            assert len(sent(engine, lambda s=session, x=statement: s.execute(x))) == 1  # type: ignore[misc]
    with factory() as session:
        session.execute(sa.select(Memo.id))
        assert [*words(engine, session, atomic_update(ADDS))] == ["SELECT", "SELECT", "UPDATE"]


def words(engine: sa.Engine, session: LockingSession, statement: Any) -> Iterator[str]:
    """Yield the first word of each statement of this session, except BEGIN."""
    for one in sent(engine, lambda: session.execute(statement)):
        if not one.startswith("BEGIN"):
            yield one.split()[0]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.databases("postgresql", "sqlite")
@pytest.mark.parametrize("way", WAYS)
def test_the_other_ways_need_the_lock_which_asks(factory: Factory, way: str) -> None:
    epoch = taken(factory)
    with factory() as other:
        with pytest.raises(UnlockedWrite):
            WAYS[way](other)
        other.rollback()
        with pytest.raises(CheckedOut):
            other.get_entity(Order, 1, ForUpdate)
        with pytest.raises(UnlockedWrite):
            WAYS[way](other)
        other.rollback()
        other.get_entity(Order, 1, ForUpdate, checkout=epoch)
        WAYS[way](other)
        other.commit()
    with factory() as other, other.unguarded():  # documented in its docstring
        WAYS["update"](other)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("way", ["with_for_update()", "entity_set()", "atomic_update()"])
def test_the_map_of_a_statement_may_lead_to_documents_with_other_check_outs(
    engine: sa.Engine, factory: Factory, way: str
) -> None:
    schemas = {"schema_translate_map": {None: sa.inspect(engine).default_schema_name}}
    with factory() as session:
        statement: Any = {
            "with_for_update()": sa.select(Order).with_for_update(),
            "entity_set()": session.entity_set(Order, ForUpdate),
            "atomic_update()": atomic_update(ADDS),
        }[way]
        with pytest.raises(LockNotSupported, match="schema_translate_map of the statement"):
            session.execute(statement, execution_options=schemas).all()
        assert not session.held_locks
    with LockingSession(engine.execution_options(**schemas), checkouts=CHECKOUTS) as session:
        session.execute(statement)
        session.rollback()


def test_a_combined_commit_asks(factory: Factory) -> None:
    taken(factory)
    with pytest.raises(CheckedOut):
        DocumentGate().run(factory, Order, 1, lambda _, order: setattr(order, "total", 7))


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_the_docstring_of_the_way_that_does_not_ask() -> None:
    assert "check-out" in (LockingSession.unguarded.__doc__ or "")


# --------------------------------------------------------------------------------------------------
# Check-outs in sessions with other features: a refused lock leaves nothing behind.

GATE = DocumentGate()
OPTIONS: dict[str, dict[str, Any]] = {
    "batch": {"priority": "batch"},
    "gate": {"gate": GATE},
    "gate and batch": {"gate": GATE, "priority": "batch"},
    "limits": {"hold_limit": 30, "warn_held_after": 30, "lock_timeout": 5, "diagnose": True},
    "order": {"lock_order": (Order,), "guard_tracing": True},
}


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql", "mysql")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_refused_lock_leaves_nothing_behind(
    factory: sessionmaker[LockingSession], options: dict[str, Any]
) -> None:
    with factory() as session:
        mine = session.check_out(Order, 1, "ann")
        session.commit()
    make = sessionmaker(factory.kw["bind"], class_=LockingSession, checkouts=CHECKOUTS, **options)
    with make() as refused, make() as other:
        with pytest.raises(CheckedOut):
            refused.get_entity(Order, 1, ForUpdate)
        assert not refused.in_transaction()
        with other.locked(Order, 1, checkout=mine) as order:
            order.total += 1
        assert other.check_out(Order, 2, "bob").epoch == 1
        other.rollback()
        with refused.locked(Order, 2) as order:
            order.total += 1
    with factory() as session:
        session.check_in(mine)
        session.commit()


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_a_lent_connection(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        with LockingSession(connection, checkouts=CHECKOUTS) as session:
            assert session.check_out(Order, 1, "ann").epoch == 1
            session.commit()
        with LockingSession(connection, checkouts=CHECKOUTS) as session:
            with pytest.raises(CheckedOut):
                session.scalars(sa.select(Order).with_for_update()).all()
            assert not session.held_locks


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite")
def test_a_transaction_that_is_refused_is_not_repeated(
    factory: sessionmaker[LockingSession],
) -> None:
    with factory() as session:
        session.check_out(Order, 1, "ann")
        session.commit()
    runs = []

    def work(session: LockingSession) -> None:
        runs.append(session)
        session.get_entity(Order, 1, ForUpdate)

    with pytest.raises(CheckedOut):
        run_transaction(factory, work)
    assert len(runs) == 1


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_a_combined_commit_is_refused_and_may_check_out(
    factory: sessionmaker[LockingSession],
) -> None:
    gate = DocumentGate(combine=20)

    def check_out(session: LockingSession, order: Order) -> int:
        return session.check_out(Order, order.id, "ann").epoch

    def check_out_and_fail(session: LockingSession, order: Order) -> None:
        session.check_out(Order, order.id, "bob")
        raise OSError("no printer")

    with pytest.raises(OSError, match="no printer"):
        gate.run(factory, Order, 1, check_out_and_fail)
    assert gate.run(factory, Order, 1, check_out) == 1  # the failed check-out is undone
    for _ in range(2):
        with pytest.raises(CheckedOut) as caught:
            gate.run(factory, Order, 1, lambda *_: None)
        assert caught.value.checkout is not None
        assert caught.value.checkout.owner == "ann"
    assert gate.run(factory, Order, 2, lambda _, order: order.id) == 2


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_each_call_of_a_combined_commit_has_a_check_out_of_its_own(
    factory: sessionmaker[LockingSession],
) -> None:
    gate, calls = DocumentGate(), list[Future[Any]]()

    def check_out(session: LockingSession, order: Order) -> int:
        return session.check_out(Order, order.id, "ann").epoch

    def add(_session: LockingSession, order: Order) -> int:
        order.total += 1
        return order.total

    with ThreadPoolExecutor(5) as threads, factory() as holder:
        holder.get_entity(Order, 1, ForUpdate)
        run: Any = gate.run
        for function, given in (
            *((add, {}), (check_out, {}), (add, {})),
            *((add, {"checkout": 1}), (add, {"checkout": 7})),
        ):
            calls.append(threads.submit(run, factory, Order, 1, function, **given))
            wait_until_queued(gate, number=len(calls))
        holder.rollback()
        errors = [call.exception(30) for call in calls]
    expected = type(None), type(None), CheckedOut, type(None), CheckoutLost
    assert tuple(map(type, errors)) == expected
    with factory() as session:
        before = session.get_one(Order, 1).total
    with pytest.raises(CheckedOut):
        gate.run(factory, Order, 1, add)
    assert gate.run(factory, Order, 1, add, checkout=1) == before + 1


@pytest.mark.not_databases("sqlite-journal")
@pytest.mark.databases("sqlite", "postgresql", "mysql")
def test_what_is_checked_out_is_not_created_again(
    session: LockingSession, other: LockingSession
) -> None:
    session.check_out(Order, 1, "ann")
    session.commit()
    with pytest.raises(CheckedOut):
        other.get_or_create_entity(Order, 1)
    created, is_new = other.get_or_create_entity(Order, 9)
    assert is_new
    mine = other.check_out(Order, created.id, "bob")
    other.commit()
    with session.locked(Order, 9, checkout=mine) as order:
        order.total += 1
