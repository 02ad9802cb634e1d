"""Rules of the server for a connection, a database or a kind of table.

The model follows each rule as Microsoft documents it; the docstring of a test names the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, create_engine, event, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from lab.proof.questions import read_only_replica
from lab.tds.answers import Refused, Rows
from lab.tds.drivers import pyodbc
from lab.tds.model import OFF, READ_COMMITTED, SNAPSHOT, Database, Settings, Table
from lab.tds.model import Session as ModelSession
from lab.tds.server import TDSServer, said
from sa_doclock import (
    DocLockError,
    LockingSession,
    LockNotSupported,
    LockOptions,
    SnapshotConflict,
    WrongIsolation,
)
from sa_doclock.dialects import strategy_for
from sa_doclock.testing import recorded_locks
from tests.sql.models import Customer, Order

pytestmark = pytest.mark.each_value

FOR_UPDATE, SHARED = LockOptions.ForUpdate, LockOptions.SharedRead
SKIP = LockOptions.ForUpdate | LockOptions.SkipLocked
NO_WAIT = LockOptions.ForUpdate | LockOptions.NoWait
ASKS_UPDATEABILITY = "DATABASEPROPERTYEX"
WAYS: dict[str, Callable[[LockingSession], object]] = {
    "SharedRead": lambda session: session.get_entity(Order, 1, SHARED),
    "SharedRead, NoWait": lambda session: session.get_entity(Order, 1, SHARED | LockOptions.NoWait),
    "by key": lambda session: session.get_entity(Order, 1, FOR_UPDATE),
    "set": lambda session: session.scalars(session.entity_set(Order, SKIP)),
    "named": lambda session: session.lock_key("a"),
}


@pytest.fixture
def another(engine: Engine) -> Iterator[Engine]:
    """Provide a second engine on the same server, which connects after the first."""
    other = create_engine(engine.url, module=pyodbc(), pool_size=1, max_overflow=0)
    strategy_for(other)
    yield other
    other.dispose()


# By the pages "Active Secondaries: Readable Secondary Replicas" and "DATABASEPROPERTYEX"


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("reads_before", [False, True])
def test_a_read_only_database_gives_no_lock(
    session: LockingSession,
    wire: TDSServer,
    way: Callable[[LockingSession], object],
    *,
    reads_before: bool,
) -> None:
    wire.database.read_only = True
    if reads_before:
        session.get(Customer, 1)
    with pytest.raises(LockNotSupported, match="ignores locking hints"):
        way(session)
    assert said(wire, "UPDLOCK") == said(wire, "applock") == []
    assert session.held_locks == {}


def test_nor_does_it_for_with_for_update(session: LockingSession, wire: TDSServer) -> None:
    wire.database.read_only = True
    with pytest.raises(LockNotSupported, match=r"Order rows FOR UPDATE .* ignores locking hints"):
        session.get(Order, 1, with_for_update=True)
    assert session.held_locks == {}
    assert not session.in_transaction()


@pytest.mark.parametrize("lock", [LockOptions.SnapshotRead, LockOptions.NoLock])
def test_it_can_be_read(session: LockingSession, wire: TDSServer, lock: LockOptions) -> None:
    wire.database.read_only = True
    assert session.get_one_entity(Order, 1, lock).id == 1
    assert said(wire, ASKS_UPDATEABILITY) == []


def test_the_proof_asks_a_replica_where_there_is_one(engine: Engine, wire: TDSServer) -> None:
    assert read_only_replica(engine) == "not asked: ApplicationIntent=ReadOnly leads to no replica"
    wire.database.read_only = True
    assert read_only_replica(engine) == "yes"


def test_each_connection_is_asked_once(engine: Engine, wire: TDSServer) -> None:
    for _ in range(2):
        with LockingSession(engine) as session:
            session.get_one_entity(Order, 1, FOR_UPDATE)
    assert len(said(wire, ASKS_UPDATEABILITY)) == 1
    engine.dispose()
    with LockingSession(engine) as session:
        session.get_one_entity(Order, 1, FOR_UPDATE)
    assert len(said(wire, ASKS_UPDATEABILITY)) == 2


def test_the_model_ignores_hints_on_a_read_only_database(engine: Engine, wire: TDSServer) -> None:
    wire.database.read_only = True
    wire.database.tables = {"shop_order": Table(frozenset({"id"}), ("id",))}
    with engine.connect() as connection:
        order = Order.__table__
        connection.execute(order.select().with_hint(order, "WITH (UPDLOCK)"))
        assert wire.sessions[-1].locked == set()
        with pytest.raises(DBAPIError, match=r"\(3906\)"):
            connection.execute(update(Order).values(total=1))


# "Temporal tables", Important; error 13535


def _change(engine: Engine, factory: type[Session] = LockingSession) -> None:
    with factory(engine) as session:
        if isinstance(session, LockingSession):
            session.get_one_entity(Order, 1, FOR_UPDATE)
        session.get_one(Order, 1).total += 1
        session.commit()


def test_a_transaction_begins_with_the_session_where_tables_are_temporal(
    wire: TDSServer, engine: Engine
) -> None:
    wire.database.periods = {"shop_order": 0}
    first, second = (
        create_engine(engine.url, module=pyodbc(), pool_size=1, max_overflow=0) for _ in range(2)
    )
    strategy_for(first)
    strategy_for(second)  # its driver began later
    _change(second)
    _change(first)
    first.dispose()
    second.dispose()


def test_by_the_drivers_own_begin_it_would_fail(
    engine: Engine, another: Engine, wire: TDSServer
) -> None:
    wire.database.periods = {"shop_order": 0}  # unknown to our strategies, which asked before
    _change(another)
    with pytest.raises(SnapshotConflict, match="changed by another transaction") as caught:
        _change(engine)
    assert caught.value.retryable
    _change(engine)
    assert wire.sessions[0].begun_at is not None


def test_the_model_goes_by_the_begin_of_the_transaction(
    engine: Engine, another: Engine, wire: TDSServer
) -> None:
    wire.database.periods = {"shop_order": 0}
    _change(another, Session)
    with pytest.raises(DBAPIError, match=r"\(13535\)"):
        _change(engine, Session)


def test_what_was_written_before_is_not_committed_by_it(wire: TDSServer, engine: Engine) -> None:
    wire.database.periods = {"shop_order": 0}
    fresh = create_engine(engine.url, module=pyodbc(), pool_size=1, max_overflow=0)
    strategy_for(fresh)
    with fresh.connect() as lent, lent.begin():
        lent.execute(text("UPDATE shop_customer SET name = 'Bob'"))
        wire.sent.clear()
        with LockingSession(lent) as session:
            session.get_one_entity(Order, 1, FOR_UPDATE)
        assert not [sent for sent in wire.sent if sent.how.startswith("commit")]
    fresh.dispose()


# "SET LOCK_TIMEOUT", "SET statements", which says nothing of sp_prepexec


@pytest.mark.parametrize("restores", [True, False])
def test_a_lock_timeout_is_restored_whether_or_not_the_server_does(
    session: LockingSession, wire: TDSServer, *, restores: bool
) -> None:
    wire.database.restores = restores
    for ident in (1, 2, 3):
        session.get_one_entity(Order, ident, FOR_UPDATE, lock_timeout=0.3)
        assert wire.sessions[0].settings.lock_timeout == -1  # the others are ours, and closed
    assert len(said(wire, "SELECT @@LOCK_TIMEOUT")) == (2 if restores else 5)


# "SET TRANSACTION ISOLATION LEVEL"


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_stricter_level_of_the_program_is_kept(
    engine: Engine, wire: TDSServer, level: str
) -> None:
    with LockingSession(engine.execution_options(isolation_level=level)) as session:
        session.get_one_entity(Order, 1, FOR_UPDATE)
        assert wire.sessions[-1].settings.level == level
        session.commit()
        session.get(Customer, 1)
        session.get_one_entity(Order, 1, FOR_UPDATE)  # in an open transaction
        assert len(said(wire, "UPDLOCK")) == 2


def test_a_transaction_that_reads_dirty_is_refused_for_that_reason(engine: Engine) -> None:
    dirty = engine.execution_options(isolation_level="READ UNCOMMITTED")
    with LockingSession(dirty) as session:
        session.get(Customer, 1)
        with pytest.raises(WrongIsolation, match="has not committed"):
            session.get_one_entity(Order, 1, FOR_UPDATE)


def test_so_is_one_that_reads_dirty_from_now_on(session: LockingSession, wire: TDSServer) -> None:
    session.get_one_entity(Order, 1, FOR_UPDATE)
    session.execute(text("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED"))
    with pytest.raises(WrongIsolation, match="has not committed"):
        session.get_one_entity(Order, 2, FOR_UPDATE)
    assert len(said(wire, "UPDLOCK")) == 1


def test_skip_locked_at_serializable_is_refused(engine: Engine) -> None:
    strict = engine.execution_options(isolation_level="SERIALIZABLE")
    with LockingSession(strict) as session:
        session.get(Customer, 1)
        with pytest.raises(WrongIsolation):
            session.scalars(session.entity_set(Order, SKIP))


def test_where_the_default_level_is_not_reported_it_is_known(
    wire: TDSServer, engine: Engine
) -> None:
    wire.database.hides_views = True
    blind = create_engine(engine.url, module=pyodbc(), pool_size=1, max_overflow=0)
    connected = len(wire.sessions)
    for _ in range(2):
        with LockingSession(blind) as session:
            session.get_one_entity(Order, 1, SHARED)
            assert wire.sessions[-1].settings.level == SNAPSHOT
        assert wire.sessions[-1].settings.level == READ_COMMITTED
    assert len(wire.sessions) == connected + 1
    blind.dispose()


# "Database Engine events and errors": tables without row locks, plans, scans


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (651, LockNotSupported, "columnstore"),
        (10794, LockNotSupported, "memory-optimized"),
        (41332, LockNotSupported, "memory-optimized"),
        (41368, LockNotSupported, "memory-optimized"),
        (650, WrongIsolation, "READ COMMITTED"),
        (601, SnapshotConflict, "run the whole transaction again"),
    ],
)
def test_a_number_becomes_its_class(
    session: LockingSession, wire: TDSServer, number: int, kind: type[DocLockError], words: str
) -> None:
    wire.database.failures.append(("FROM shop_order", number))
    with pytest.raises(kind, match=words):
        session.get_entity(Order, 1, FOR_UPDATE)


# The duration of a lock wait


def test_connecting_is_no_wait_for_a_lock(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    slow = create_engine(engine.url, module=pyodbc(), pool_size=1, max_overflow=0)

    @event.listens_for(slow, "do_connect")
    def _take_a_while(*_: object) -> None:
        clock[0] += 100

    with recorded_locks() as locks, LockingSession(slow) as session:
        session.get_one_entity(Order, 1, FOR_UPDATE)
    slow.dispose()
    assert clock == [100.0]
    assert [lock.waited for lock in locks] == [0.0]


# --------------------------------------------------------------------------------------------------
# The test server rejects a wrong sequence, as the real one is documented to do.

SNAPSHOT_MODEL = "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
READ_COMMITTED_MODEL = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
SERIALIZABLE = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
BEGIN = "IF @@TRANCOUNT = 0 BEGIN TRANSACTION"
READ = "SELECT t.a FROM t"
SKIP_MODEL = "SELECT t.a FROM t WITH (READPAST)"
ALTER = "ALTER DATABASE CURRENT SET ALLOW_SNAPSHOT_ISOLATION ON"

REFUSED = {
    (BEGIN, ALTER): 226,
    ("SET IMPLICIT_TRANSACTIONS ON", ALTER): 226,
    (SNAPSHOT_MODEL, BEGIN, SKIP_MODEL): 650,
    (SERIALIZABLE, BEGIN, SKIP_MODEL): 650,
    ("COMMIT",): 3902,
    ("ROLLBACK",): 3903,
    (BEGIN, SNAPSHOT_MODEL, READ): 3951,
    (BEGIN, READ, SNAPSHOT_MODEL, READ): 3951,
    ("SET IMPLICIT_TRANSACTIONS ON", READ, SNAPSHOT_MODEL, READ): 3951,
}
TAKEN = (
    (ALTER,),
    (BEGIN, "COMMIT", ALTER),
    (READ_COMMITTED_MODEL, BEGIN, SKIP_MODEL),
    (BEGIN, "COMMIT"),
    (BEGIN, "ROLLBACK"),
    ("IF @@TRANCOUNT > 0 ROLLBACK TRAN",),
    (SNAPSHOT_MODEL, BEGIN, READ),
    (
        SNAPSHOT_MODEL,
        BEGIN,
        READ_COMMITTED_MODEL,
        READ,
        SNAPSHOT_MODEL,
        READ,
    ),  # documented as allowed
    (BEGIN, SNAPSHOT_MODEL, "COMMIT", BEGIN, READ),
)


def run(session: ModelSession, *batches: str) -> list[object]:
    return [answer for batch in batches for answer in session.batch(batch)]


@pytest.mark.parametrize("order", REFUSED, ids="; ".join)
def test_a_wrong_order_is_refused(order: tuple[str, ...]) -> None:
    session = ModelSession(Database())
    run(session, *order[:-1])
    with pytest.raises(Refused) as caught:
        run(session, order[-1])
    assert caught.value.number == REFUSED[order]


@pytest.mark.parametrize("order", TAKEN, ids="; ".join)
def test_a_right_one_is_taken(order: tuple[str, ...]) -> None:
    run(ModelSession(Database()), *order)


def test_a_database_refuses_snapshots_until_it_allows_them() -> None:
    session = ModelSession(Database(snapshot=OFF))
    with pytest.raises(Refused, match="3952"):
        run(session, SNAPSHOT_MODEL, BEGIN, READ)
    run(session, "COMMIT", ALTER, READ)


@pytest.mark.parametrize(("number", "survives"), [(1222, True), (1205, False), (3960, False)])
def test_a_transaction_survives_some_errors(number: int, *, survives: bool) -> None:
    session = ModelSession(Database(failures=[("FROM t", number)]))
    run(session, BEGIN)
    with pytest.raises(Refused, match=str(number)):
        run(session, READ)
    assert (session.begun_at is not None) == survives


def test_what_a_procedure_sets_ends_with_it() -> None:
    session = ModelSession(Database())
    (*_, rows, _) = run(session, "EXEC sp_executesql N'SET LOCK_TIMEOUT 300; SELECT t.a FROM t'")
    assert rows == Rows(["a"], [[1]])
    assert session.settings == Settings()
    list(session.procedure(f"SET LOCK_TIMEOUT 300; {READ}"))
    assert session.settings == Settings()


def test_what_a_batch_sets_stays() -> None:
    session = ModelSession(Database())
    run(session, f"SET LOCK_TIMEOUT 300; SET DEADLOCK_PRIORITY LOW; {SNAPSHOT_MODEL}")
    assert session.settings == Settings("SNAPSHOT", 300, -5)


def test_a_semicolon_in_a_text_ends_nothing() -> None:
    assert (
        len(run(ModelSession(Database()), "SELECT t.a FROM t WHERE t.b = 'it''s; so'; SELECT 1"))
        == 2
    )
