"""Limits in a session of two engines, and in one that has joined a Connection's transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from sa_doclock import LockingSession, LockNotAvailable, LockOptions
from tests.integration.locking.connections import patience_of
from tests.integration.timeouts.ways import SHORT, given_up
from tests.support.models import Clause, Contract, Lease, Order

ForUpdate = LockOptions.ForUpdate
Session = LockingSession


@pytest.fixture
def two(make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any]) -> Session:
    """Open a session with an engine for contracts and leases, and another for the rest."""
    one, other = make_engine(**read_committed), make_engine(**read_committed)
    return Session(one, binds={Contract: other, Clause: other})


@pytest.mark.not_databases("sqlite")  # two engines would lock one file
def test_each_engine_has_the_limit_and_the_connection_its_own(two: Session, other: Session) -> None:
    with two:
        two.begin()
        before = [patience_of(two.connection({"mapper": entity})) for entity in (Order, Lease)]
        two.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        two.get_one_entity(Lease, 1, ForUpdate, lock_timeout=5)
        two.get_entities(Lease, [1, 2], ForUpdate, lock_timeout=5.5)
        after = [patience_of(two.connection({"mapper": entity})) for entity in (Order, Lease)]
        assert after == before
        assert len({id(two.connection({"mapper": entity})) for entity in (Order, Lease)}) == 2
        two.rollback()
        other.get_one_entity(Lease, 1, ForUpdate)
        two.get_one_entity(Order, 1, ForUpdate, lock_timeout=5.5)
        with pytest.raises(LockNotAvailable, match=r"^Lease 1 FOR UPDATE on .* not granted"):
            two.get_entity(Lease, 1, ForUpdate, lock_timeout=SHORT)
        two.rollback()
        assert not two.held_locks


def test_a_lent_connection(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], other: Session
) -> None:
    with make_engine(**read_committed).connect() as connection:
        before = patience_of(connection)
        connection.rollback()
        with Session(connection, lock_timeout=5.5) as session:
            session.get_one_entity(Order, 1, ForUpdate).total = 31
            session.save_changes()
        other.get_one_entity(Order, 1, ForUpdate)
        with Session(connection, lock_timeout=SHORT) as session:
            for how in ({}, {"lock_timeout": 0}, {"lock_timeout": 1e-6}):
                given_up(
                    session, lambda session, how=how: session.get_entity(Order, 1, ForUpdate, **how)
                )
        assert not connection.in_transaction()
        assert patience_of(connection) == before
        connection.rollback()


@pytest.mark.not_databases("sqlite")  # a first read is outside of any transaction there
def test_a_lent_connection_whose_transaction_the_session_joins(
    make_engine: Callable[..., sa.Engine], read_committed: dict[str, Any], other: Session
) -> None:
    other.get_one_entity(Order, 1, ForUpdate)
    with make_engine(**read_committed).connect() as connection, connection.begin():
        before = patience_of(connection)
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            given_up(
                session, lambda session: session.get_entity(Order, 1, ForUpdate, lock_timeout=SHORT)
            )
            session.get_one_entity(Order, 2, ForUpdate, lock_timeout=5.5)
            session.commit()
        assert patience_of(connection) == before
