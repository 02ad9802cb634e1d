"""The session sets the level before the transaction begins; afterwards the pool's own level applies again.

These tests do not prove that a SNAPSHOT transaction reads a single moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection, Engine, select, text, update
from sqlalchemy.exc import DBAPIError

from lab.tds.engines import ENGINES
from lab.tds.model import READ_COMMITTED, SNAPSHOT
from lab.tds.server import TDSServer, said
from sa_doclock import (
    DeadlockDetected,
    DocLockError,
    LockFailed,
    LockingSession,
    LockNotAvailable,
    LockNotSupported,
    LockOptions,
    lock_waits,
)
from sa_doclock.dialects import strategies, strategy_for
from tests.sql.models import Customer, Lease, Order

pytestmark = pytest.mark.each_value

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
    received = [text for text in received if "Updateability" not in text]  # once per connection
    assert received[:2] == [SET_SNAPSHOT, "commit and begin"]
    assert [text.partition(" ")[0] for text in received[2:]] == ["SELECT", "SELECT"]
    assert "CURRENT_TRANSACTION_ID" in received[3]


def test_in_a_transaction_that_has_begun_it_is_too_late(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text(SET_SNAPSHOT))
        with pytest.raises(DBAPIError, match=r"\(3951\)"):
            connection.execute(select(Order.__table__))
        connection.invalidate()  # a rollback would raise 3903: the transaction is gone


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


# --------------------------------------------------------------------------------------------------
# LOCK_TIMEOUT and DEADLOCK_PRIORITY stay with a connection: none of ours remains on it.
#
# The server restores what sp_executesql and sp_prepexec set; that is documented ("SET
# statements"), and is not proved here.


def _timeouts(wire: TDSServer) -> set[int]:
    return {session.settings.lock_timeout for session in wire.sessions}


def test_a_limit_is_gone_with_its_statement(session: LockingSession, wire: TDSServer) -> None:
    for entity in (Order, Lease):
        session.get_entity(entity, 1, LockOptions.ForUpdate, lock_timeout=0.3)
    session.scalars(session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)).all()
    assert len(said(wire, "SET LOCK_TIMEOUT 300")) == 4  # a second statement reads a lease
    assert _timeouts(wire) == {-1}


def test_a_set_that_skips_rows_limits_its_wait_for_a_table(
    session: LockingSession, wire: TDSServer
) -> None:
    """READPAST skips only row locks: "Table hints", READPAST."""
    skipping = LockOptions.ForUpdate | LockOptions.SkipLocked
    session.scalars(session.entity_set(Order, skipping, lock_timeout=0.3)).all()
    (sent,) = said(wire, "READPAST")
    assert "SET LOCK_TIMEOUT 300" in sent.text
    wire.database.failures.append(("READPAST", 1222))
    with pytest.raises(LockNotAvailable):
        session.scalars(session.entity_set(Order, skipping, lock_timeout=0.3)).all()
    session.rollback()
    assert _timeouts(wire) == {-1}


@pytest.mark.parametrize("number", [1222, 1205])
def test_also_after_a_failure(session: LockingSession, wire: TDSServer, number: int) -> None:
    orders = session.entity_set(Order, LockOptions.ForUpdate, lock_timeout=0.3)
    for lock in (
        lambda: session.get_entity(Order, 1, LockOptions.ForUpdate, lock_timeout=0.3),
        lambda: session.scalars(orders).all(),
    ):
        wire.database.failures.append(("UPDLOCK", number))
        with pytest.raises(LockFailed):
            lock()
        session.rollback()
    assert len(said(wire, "SET LOCK_TIMEOUT 300")) == 2
    assert _timeouts(wire) == {-1}


def test_one_in_a_batch_of_the_connection_would_stay(engine: Engine) -> None:
    with engine.connect() as connection:
        connection.execute(text("SET LOCK_TIMEOUT 777"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT @@LOCK_TIMEOUT")).scalar_one() == 777


def test_a_batch_sessions_priority_is_put_back(engine: Engine, wire: TDSServer) -> None:
    with LockingSession(engine, priority="batch") as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
        assert wire.sessions[0].settings.deadlock_priority == -5
    assert wire.sessions[0].settings.deadlock_priority == 0


def test_also_after_a_deadlock(engine: Engine, wire: TDSServer) -> None:
    wire.database.failures.append(("UPDLOCK", 1205))
    with LockingSession(engine, priority="batch") as session, pytest.raises(DeadlockDetected):
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    with LockingSession(engine) as session:
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert wire.sessions[-1].settings.deadlock_priority == 0


NOWAIT = {
    "lock": lambda s: s.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait),
    "snapshot": lambda s: s.get_entity(Order, 1, LockOptions.SharedRead | LockOptions.NoWait),
    "set": lambda s: s.scalars(
        s.entity_set(Order, LockOptions.ForUpdate | LockOptions.NoWait)
    ).all(),
    "adopted": lambda s: s.get(Order, 1, with_for_update={"nowait": True}),
    "adopted, Core": lambda s: s.execute(
        select(Order.__table__.c.id).with_for_update(nowait=True)
    ).all(),
}


@pytest.mark.parametrize("way", NOWAIT)
def test_nowait_does_not_wait_for_ddl_either(engine: Engine, wire: TDSServer, way: str) -> None:
    """The hint does not apply to the lock on the table's definition, which comes first."""
    with LockingSession(engine) as session:
        NOWAIT[way](session)
        (sent,) = [one for one in wire.sent if "FROM shop_order" in one.text]
        assert "SET LOCK_TIMEOUT 0; SELECT" in sent.text
        assert session.connection().exec_driver_sql("SELECT @@LOCK_TIMEOUT").scalar_one() == -1


# --------------------------------------------------------------------------------------------------
# The library's own queries to SQL Server use a separate connection.
#
# On a Connection lent by the program, they do not begin or end a transaction.

FOR_UPDATE = LockOptions.ForUpdate
OF_THE_LOCK = (
    "SELECT CAST(DATABASEPROPERTYEX",
    "SELECT shop_order",
    "SELECT CURRENT_TRANSACTION_ID",
    "SELECT @@LOCK_TIMEOUT",  # pymssql: the session restores it
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
    """Make an engine that has sent no questions yet, for each driver."""
    engine = ENGINES[any_driver](wire.port, pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


@pytest.fixture
def lent(fresh: Engine, wire: TDSServer) -> Iterator[Connection]:
    """Lend the engine's only connection."""
    with fresh.connect() as lent:
        wire.sent.clear()
        yield lent


def ends(text: str) -> bool:
    """Return whether this ends a transaction: a request of ODBC, or the text of pymssql."""
    return text.lower().startswith(("commit", "rollback"))


def sent_over(wire: TDSServer, number: int) -> list[str]:
    """Return the texts from the session with this number, without ODBC's additions."""
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


# --------------------------------------------------------------------------------------------------
# The query for a row's holder uses a separate connection, which keeps its short limit.


def test_it_is_asked_beside_the_pool(engine: Engine, wire: TDSServer) -> None:
    with LockingSession(engine) as session:
        session.get(Customer, 1)  # holds the only connection of the pool
        assert lock_waits(engine) == []
    (asked,) = said(wire, "dm_os_waiting_tasks")
    assert [one.settings.lock_timeout for one in wire.sessions] == [-1, 500]
    assert wire.sessions[asked.session] is wire.sessions[1]


def test_a_failed_lock_asks_after_its_rollback(engine: Engine, wire: TDSServer) -> None:
    wire.database.failures.append(("UPDLOCK", 1222))
    with LockingSession(engine, diagnose=True) as session:
        with pytest.raises(LockNotAvailable):
            session.get_entity(Order, 1, LockOptions.ForUpdate | LockOptions.NoWait)
        session.get_entity(Order, 1, LockOptions.ForUpdate)
    assert {sent.session for sent in said(wire, "dm_tran_locks")} == {2}  # 1 asked for the limit
    assert [one.settings.lock_timeout for one in wire.sessions] == [-1, -1, 500]


@pytest.mark.parametrize("number", [300, 262])  # 262 is Azure SQL's
def test_an_account_that_may_not_see_it(engine: Engine, wire: TDSServer, number: int) -> None:
    wire.database.failures.append(("dm_os_waiting_tasks", number))
    with pytest.raises(LockNotSupported, match="needs GRANT VIEW SERVER STATE"):
        lock_waits(engine)
