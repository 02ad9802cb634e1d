"""The level is set before the transaction begins, and is the pool's own again afterwards.

That a SNAPSHOT transaction reads one moment is not proved here.
"""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from sa_doclock import DocLockError, LockingSession, LockOptions
from tests.sql.models import Customer, Order
from tests.sql.tds.model import READ_COMMITTED, SNAPSHOT
from tests.sql.tds.server import TDSServer, said

SET_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
READERS = (LockOptions.SharedRead, LockOptions.SnapshotRead)
each_reader = pytest.mark.parametrize("lock", READERS)


@each_reader
def test_the_transaction_of_a_reader_begins_at_snapshot(
    session: LockingSession, wire: TDSServer, lock: LockOptions
) -> None:
    session.get_one_entity(Order, 1, lock)
    assert wire.sessions[-1].begun_at == SNAPSHOT
    received = [sent.text or sent.how for sent in wire.sent if sent.how != "sp_unprepare"]
    received = [text for text in received if "Updateability" not in text]  # once a connection
    assert received[:2] == [SET_SNAPSHOT, "commit and begin"]
    assert [text.partition(" ")[0] for text in received[2:]] == ["SELECT", "SELECT"]
    assert "CURRENT_TRANSACTION_ID" in received[3]


def test_in_a_transaction_that_has_begun_it_is_too_late(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text(SET_SNAPSHOT))
        with pytest.raises(DBAPIError, match=r"\(3951\)"):
            connection.execute(select(Order.__table__))
        connection.invalidate()  # a rollback would be 3903: the transaction is gone


@each_reader
def test_the_level_is_put_back_with_the_connection(
    session: LockingSession, wire: TDSServer, lock: LockOptions
) -> None:
    session.get_one_entity(Order, 1, lock)
    assert wire.sessions[-1].settings.level == SNAPSHOT
    session.close()
    assert wire.sessions[-1].settings.level == READ_COMMITTED


@each_reader
@pytest.mark.parametrize("number", [1222, 1205, 3960, 3952, 3951])
def test_also_after_an_error(
    session: LockingSession, wire: TDSServer, lock: LockOptions, number: int
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(DocLockError):
        session.get_entity(Order, 1, lock)
    session.close()
    session.get(Customer, 1)
    (sent,) = said(wire, "FROM shop_customer")
    assert wire.sessions[sent.session].settings.level == READ_COMMITTED


@each_reader
def test_a_lent_connection_is_given_back_at_its_level(
    engine: Engine, wire: TDSServer, lock: LockOptions
) -> None:
    with engine.connect() as lent:
        with LockingSession(lent) as session:
            session.get_one_entity(Order, 1, lock)
            assert wire.sessions[-1].settings.level == SNAPSHOT
        assert wire.sessions[-1].settings.level == READ_COMMITTED
        lent.execute(select(Order.__table__))


def test_readers_and_writers_take_turns_on_one_connection(
    session: LockingSession, wire: TDSServer
) -> None:
    levels = {LockOptions.SharedRead: SNAPSHOT, LockOptions.ForUpdate: READ_COMMITTED}
    for lock, level in [*levels.items()] * 2:
        with session.begin():
            session.get_one_entity(Order, 1, lock)
            assert wire.sessions[-1].settings.level == level
            assert wire.sessions[-1].begun_at is not None
    assert {sent.session for sent in wire.sent} == {len(wire.sessions) - 1}


def test_a_shared_read_that_skips_is_at_read_committed(
    session: LockingSession, wire: TDSServer
) -> None:
    orders = session.entity_set(Order, LockOptions.SharedRead | LockOptions.SkipLocked)
    assert len(session.scalars(orders).all()) == 1
    assert wire.sessions[-1].settings.level == READ_COMMITTED


def test_its_hint_in_a_snapshot_would_be_refused(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="SNAPSHOT") as connection:
        orders = select(Order.__table__).with_hint(Order.__table__, "WITH (READPAST)")
        with pytest.raises(DBAPIError, match=r"\(650\)"):
            connection.execute(orders)


def test_a_plain_session_stays_at_read_committed(session: LockingSession, wire: TDSServer) -> None:
    session.get(Customer, 1)
    assert said(wire, "ISOLATION LEVEL") == []
    assert wire.sessions[-1].begun_at == READ_COMMITTED
