"""The library's own questions to SQL Server go over a connection of its own.

On a Connection that the program has lent, nothing of it begins or ends a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, select, update

from sa_doclock import LockingSession, LockOptions
from sa_doclock.dialects import strategies, strategy_for
from tests.sql.models import Customer, Order
from tests.sql.tds.engines import ENGINES
from tests.sql.tds.server import TDSServer

FOR_UPDATE = LockOptions.ForUpdate
OF_THE_LOCK = (
    "SELECT CAST(DATABASEPROPERTYEX",
    "SELECT shop_order",
    "SELECT CURRENT_TRANSACTION_ID",
    "SELECT @@LOCK_TIMEOUT",  # pymssql: it is put back by the session
)
Feature = Callable[[LockingSession], object]
FEATURES: dict[str, Feature] = {
    "lock": lambda session: session.get_one_entity(Order, 1, FOR_UPDATE),
    "timed": lambda session: session.get_one_entity(Order, 1, FOR_UPDATE, lock_timeout=0.3),
    "document": lambda session: session.get_one_document(Order, 1, FOR_UPDATE),
    "set": lambda session: session.scalars(session.entity_set(Order, FOR_UPDATE)).all(),
    "with_for_update": lambda session: session.scalars(select(Order).with_for_update()).all(),
    "named": lambda session: session.lock_key("orders"),
}
each_feature = pytest.mark.parametrize("feature", FEATURES.values(), ids=FEATURES)


@pytest.fixture
def fresh(any_driver: str, wire: TDSServer) -> Iterator[Engine]:
    """Make an engine by which nothing was asked yet, over each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def lent(fresh: Engine, wire: TDSServer) -> Iterator[Connection]:
    """Lend its one connection."""
    with fresh.connect() as lent:
        wire.sent.clear()
        yield lent


def ends(text: str) -> bool:
    """Return whether a transaction is ended by it: a request of ODBC, or the text of pymssql."""
    return text.lower().startswith(("commit", "rollback"))


def sent_over(wire: TDSServer, number: int) -> list[str]:
    """Return what was sent by the session with this number, without what ODBC adds."""
    return [
        one.text or one.how
        for one in wire.sent
        if one.session == number and one.how != "sp_unprepare"
    ]


@each_feature
def test_the_first_lock_on_a_lent_connection_is_saved(
    lent: Connection, wire: TDSServer, feature: Feature
) -> None:
    with LockingSession(lent) as session:
        feature(session)
        session.execute(update(Customer).values(name="Zoe"))
        session.save_changes()
        assert not session.in_transaction()
    assert not lent.in_transaction()
    sent = sent_over(wire, 0)
    (written,) = (number for number, text in enumerate(sent) if text.startswith("UPDATE"))
    assert sent[written + 1].lower().startswith("commit")
    assert not any(map(ends, sent[:written]))


@each_feature
def test_nor_does_it_end_the_transaction_of_the_lender(
    lent: Connection, wire: TDSServer, feature: Feature
) -> None:
    lent.execute(update(Customer).values(name="Zoe"))
    before = wire.sessions[0].transaction
    with LockingSession(lent) as session:
        feature(session)
        session.save_changes()
    assert lent.in_transaction()
    assert wire.sessions[0].transaction == before
    assert not any(map(ends, sent_over(wire, 0)))


def test_all_that_is_asked_of_the_server_is_asked_elsewhere(
    lent: Connection, wire: TDSServer, any_driver: str
) -> None:
    with LockingSession(lent) as session:
        session.get_one_entity(Order, 1, FOR_UPDATE, lock_timeout=0.3)
    plain = [text.removeprefix("SET LOCK_TIMEOUT 300; ") for text in sent_over(wire, 0)]
    assert [
        text for text in plain if text.startswith("SELECT") and not text.startswith(OF_THE_LOCK)
    ] == []
    elsewhere = " ".join(one.text for one in wire.sent if one.session != 0)
    assert "temporal_type" in elsewhere
    assert "EngineEdition" in elsewhere
    assert ("SET LOCK_TIMEOUT 4321" in elsewhere) is (any_driver != "pymssql")


def test_to_ask_begins_nothing(lent: Connection, wire: TDSServer) -> None:
    strategy_for(lent)
    assert lent.dialect in strategies
    assert not lent.in_transaction()
    assert sent_over(wire, 0) == []
