"""Wherever the connection comes from, it locks, and returns with its isolation level."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import PendingRollbackError, SAWarning
from sqlalchemy.orm import scoped_session, sessionmaker

from sa_doclock import (
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    WrongIsolation,
)
from tests.integration.locking.connections import isolation_of
from tests.integration.locking.steps import finds_held, recorded
from tests.support.models import Contract, Customer, Line, Order

pytestmark = pytest.mark.own_logic

ForUpdate, SharedRead, SnapshotRead = (
    LockOptions.ForUpdate,
    LockOptions.SharedRead,
    LockOptions.SnapshotRead,
)
LOCKS = [ForUpdate, SharedRead, SnapshotRead]
Session = LockingSession
Run = Callable[..., list[Any]]
MakeEngine = Callable[..., sa.Engine]
TOTAL = sa.select(Order.total).where(Order.id == 1)


def test_a_session_bound_to_a_connection_locks(engine: sa.Engine, other: Session) -> None:
    with engine.connect() as connection, Session(connection) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        assert finds_held()(other)
        session.save_changes()
        assert not finds_held()(other)
        assert other.get_one(Order, 1).total == 31


def test_a_connection_gets_its_level_back(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        level = isolation_of(connection)
        connection.rollback()
        for lock, end in product(LOCKS, (Session.rollback, Session.commit, Session.close)):
            with Session(connection) as session:
                session.get_one_entity(Order, 1, lock)
                end(session)
            assert not connection.in_transaction(), (lock, end)
            assert isolation_of(connection) == level, (lock, end)
            connection.rollback()


def test_a_lent_connection_that_is_in_use_is_not_switched(
    engine: sa.Engine, other: Session, read_committed: dict[str, Any]
) -> None:
    with engine.connect() as connection:
        connection.execute(sa.select(Customer.name))
        with Session(connection) as session:
            if read_committed:  # the server's default level protects no document
                with pytest.raises(WrongIsolation, match="REPEATABLE READ"):
                    session.get_entity(Order, 1, ForUpdate)
            else:
                session.get_one_entity(Order, 1, ForUpdate)
                assert finds_held()(other)


def test_a_transaction_of_the_connections_is_left_to_its_owner(
    make_engine: MakeEngine, other: Session, read_committed: dict[str, Any], elsewhere: Run
) -> None:
    with make_engine(**read_committed).connect() as connection:
        transaction = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.save_changes()
        assert finds_held()(other)
        transaction.rollback()
    assert not finds_held()(other)
    assert elsewhere(TOTAL) == [(30,)]


@pytest.mark.not_databases("sqlite")  # there the other session has the only lock
@pytest.mark.parametrize("use", [lambda lent: lent.scalar(TOTAL), sa.Connection.commit])
def test_who_has_lent_a_connection_goes_on_when_he_has_rolled_back(
    make_engine: MakeEngine,
    other: Session,
    read_committed: dict[str, Any],
    use: Callable[[sa.Connection], object],
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with make_engine(**read_committed).connect() as connection:
        connection.begin()
        session = Session(connection)  # without an end
        session.get_one_entity(Order, 2, ForUpdate).total = 31
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, ForUpdate | LockOptions.NoWait)
        with pytest.raises(PendingRollbackError, match="failed to take a lock"):
            use(connection)
        connection.rollback()
        assert connection.scalar(TOTAL) == 30
        connection.commit()
        with pytest.raises(PendingRollbackError, match="failed to take a lock"):
            session.get_entity(Order, 2, ForUpdate)
        with pytest.warns(SAWarning, match="already deassociated"):  # as for any Session
            session.rollback()
        assert session.get_one_entity(Order, 2, ForUpdate).total != 31
        session.close()
        assert not connection.dispatch.rollback


def test_binds_per_mapper(make_engine: MakeEngine, other: Session) -> None:
    orders, rest = make_engine(), make_engine()
    with Session(binds={Order: orders, Line: orders, Contract: rest}, bind=rest) as session:
        with recorded(orders) as statements:
            session.get_one_entity(Order, 1, ForUpdate)
        assert [text for text in statements if "lk_order" in text]
        assert finds_held()(other)
        session.rollback()
        with recorded(orders) as statements:
            session.get_one_entity(Contract, 1, ForUpdate)
            session.scalars(session.entity_set(Contract, ForUpdate)).all()
        assert statements == []
        assert finds_held(Contract, 1)(other)


@pytest.mark.not_databases("sqlite")  # two connections share one file
def test_a_document_on_each_of_two_connections(
    make_engine: MakeEngine, other: Session, elsewhere: Run
) -> None:
    orders, rest = make_engine(), make_engine()
    with Session(binds={Order: orders, Line: orders, Contract: rest}) as session:
        session.get_one_entity(Order, 1, ForUpdate).total = 31
        session.get_one_entity(Contract, 1, ForUpdate).total = 31
        assert list(session.held_locks) == [(Order, (1,)), (Contract, (1,))]
        assert finds_held(Order, 1)(other)
        assert finds_held(Contract, 1)(other)
        session.save_changes()
    assert elsewhere(TOTAL) == [(31,)]
    assert elsewhere(sa.select(Contract.total).where(Contract.id == 1)) == [(31,)]


def test_a_bind_that_the_session_chooses(make_engine: MakeEngine, other: Session) -> None:
    chosen = make_engine()

    class Routing(Session):
        def get_bind(self, *_: Any, **__: Any) -> sa.Engine:
            return chosen

    with Routing() as session, recorded(chosen) as statements:
        session.get_one_entity(Order, 1, ForUpdate)
        assert statements
        assert finds_held()(other)


def test_a_scoped_session(
    session_factory: sessionmaker[LockingSession], other: Session, elsewhere: Run
) -> None:
    scoped = scoped_session(session_factory)
    scoped().get_one_entity(Order, 1, ForUpdate).total = 31
    assert finds_held()(other)
    scoped().save_changes()
    with scoped().locked(Order, 1) as order:
        order.total += 1
    scoped.remove()
    assert elsewhere(TOTAL) == [(32,)]


def test_an_engine_with_execution_options(
    engine: sa.Engine, other: Session, read_committed: dict[str, Any]
) -> None:
    with Session(engine.execution_options(**read_committed, logging_token="t")) as session:
        for lock in LOCKS:
            assert session.get_one_entity(Order, 1, lock).total == 30
            session.rollback()
        session.get_one_entity(Order, 1, ForUpdate)
        assert finds_held()(other)


@pytest.mark.not_databases("sqlite")
def test_a_level_that_the_session_has_chosen_is_respected(session: Session, other: Session) -> None:
    session.connection(execution_options={"isolation_level": "READ COMMITTED"})
    session.get_one(Customer, 1)
    session.get_one_entity(Order, 1, ForUpdate)
    assert finds_held()(other)
    session.rollback()
    session.connection(execution_options={"isolation_level": "SERIALIZABLE"})
    if session.get_bind().dialect.name == "mssql":  # its reads take locks at that level
        session.get_one_entity(Order, 1, ForUpdate)
        assert finds_held()(other)
        return
    with pytest.raises(WrongIsolation, match="open at SERIALIZABLE"):
        session.get_entity(Order, 1, ForUpdate)


# --------------------------------------------------------------------------------------------------
# A header whose parts are in another database cannot be locked: each database commits separately.

WAYS: dict[str, Callable[[LockingSession], object]] = {
    "get_entity": lambda session: session.get_entity(Order, 1, ForUpdate),
    "get_entities": lambda session: session.get_entities(Order, [1], ForUpdate),
    "a set": lambda session: session.scalars(session.entity_set(Order, ForUpdate)).all(),
    "adopted": lambda session: session.scalars(sa.select(Order).with_for_update()).all(),
}


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_parts_of_another_engine(
    make_engine: Callable[..., sa.Engine], way: Callable[[LockingSession], object]
) -> None:
    with LockingSession(binds={Order: make_engine(), Line: make_engine()}) as session:
        with pytest.raises(
            LockNotSupported, match=r"Line is in .* parts that another database commits"
        ):
            way(session)
        session.rollback()
        assert not session.held_locks


@pytest.mark.read_committed
@pytest.mark.not_databases("mssql")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_both_of_one_engine(
    make_engine: Callable[..., sa.Engine], way: Callable[[LockingSession], object]
) -> None:
    engine = make_engine()
    with LockingSession(binds={Order: engine, Line: engine}) as session:
        way(session)
        assert session.held_locks
