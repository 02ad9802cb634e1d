"""Sessions on a pool with one connection, through a proxy that counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.orm import sessionmaker

from sa_doclock import (
    AsyncLockingSession,
    LockingSession,
    LockNotAvailable,
    LockOptions,
    skip_redundant_rollback,
)
from sa_doclock.dialects import strategy_for
from tests.integration.asyncio.drivers import connected, in_a_loop, url_for
from tests.integration.locking.steps import finds_held
from tests.integration.timeouts.ways import Wire
from tests.support.databases import PIPELINED, Database
from tests.support.models import Order

pytestmark = pytest.mark.quick


#: Unencrypted: TLS would add its own messages.
_PLAIN: Mapping[str, dict[str, Any]] = {
    "postgresql": {"sslmode": "disable", "gssencmode": "disable"},
}


@pytest.fixture
def wire(documents: Database) -> Iterator[Wire]:
    url = sa.make_url(documents.url)
    wire = Wire(url.host or "127.0.0.1", url.port or 5432)
    yield wire
    wire.close()


@pytest.fixture
def connect(
    documents: Database, wire: Wire, read_committed: dict[str, Any]
) -> Iterator[Callable[..., LockingSession]]:
    """Return a maker of sessions through the proxy, each with a connection in its pool already."""
    made: list[LockingSession] = []

    def make(**options: Any) -> LockingSession:
        url = sa.make_url(documents.url).set(host="127.0.0.1", port=wire.port)
        url = url.update_query_dict(_PLAIN.get(documents.name, {}))
        given = {**read_committed, **options}
        engine = sa.create_engine(url, pool_size=1, max_overflow=0, pool_timeout=5, **given)
        session = LockingSession(engine)
        made.append(session)
        for _ in range(2):  # the queries sent once per server
            session.get_one_entity(Order, 1, LockOptions.ForUpdate)
            session.rollback()
        return session

    yield make
    for session in made:
        session.close()
        session.get_bind().engine.dispose()


# --------------------------------------------------------------------------------------------------
# A connection returns to its pool without a transaction or a lock, in a known number of round trips.

ForUpdate = LockOptions.ForUpdate


# --------------------------------------------------------------------------------------------------
# Whatever used a connection, it returns without a transaction or a lock.

Session = LockingSession
_CHANGE = "UPDATE lk_order SET total = 99 WHERE id = 1"


@pytest.fixture
def engine(make_engine: Callable[..., sa.Engine]) -> sa.Engine:
    return make_engine(pool_size=1, max_overflow=0, pool_timeout=5, **skip_redundant_rollback())


def raw(connection: Any, *statements: str) -> None:
    cursor = connection.cursor()
    for statement in statements:
        cursor.execute(statement)
    cursor.close()


def closes(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate).total = 99
    session.flush()
    session.close()


def drops_a_connection(session: Session) -> None:
    connection = session.get_bind().engine.connect()
    connection.exec_driver_sql(_CHANGE)
    connection.close()


def drops_a_driver_connection(session: Session) -> None:
    connection = session.get_bind().engine.raw_connection()
    raw(connection, _CHANGE)
    connection.close()


def goes_on_after_a_commit(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    session.commit()
    drops_a_driver_connection(session)


def goes_on_in_a_hook_of_the_commit(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    connection = session.connection().connection
    event.listen(session, "after_commit", lambda _: raw(connection, _CHANGE), once=True)
    session.commit()


def goes_on_in_a_hook_of_the_rollback(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    connection = session.connection().connection
    event.listen(session, "after_rollback", lambda _: raw(connection, _CHANGE), once=True)
    session.rollback()


def rolls_back_a_savepoint(session: Session) -> None:
    session.begin()
    savepoint = session.begin_nested()
    session.get_one_entity(Order, 1, ForUpdate)
    savepoint.rollback()
    session.execute(sa.text(_CHANGE))
    session.close()


def fails(session: Session) -> None:
    session.get_one_entity(Order, 1, ForUpdate)
    with suppress(sa.exc.DBAPIError):
        session.execute(sa.text("SELECT nothing FROM nowhere"))
    session.close()


def lends_its_connection(session: Session) -> None:
    with session.get_bind().engine.connect() as connection:
        with Session(connection) as joined:
            joined.get_one_entity(Order, 1, ForUpdate)
            joined.commit()
        raw(connection.connection, _CHANGE)


USES = [
    closes,
    drops_a_connection,
    drops_a_driver_connection,
    goes_on_after_a_commit,
    goes_on_in_a_hook_of_the_commit,
    goes_on_in_a_hook_of_the_rollback,
    rolls_back_a_savepoint,
    fails,
    lends_its_connection,
]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.parametrize("use", USES)
def test_no_lock_and_no_change_is_left(
    engine: sa.Engine,
    session: Session,
    make_engine: Callable[..., sa.Engine],
    elsewhere: Callable[..., list[Any]],
    use: Callable[[Session], None],
) -> None:
    use(session)
    assert engine.pool.checkedout() == 0  # type: ignore[attr-defined]
    with sessionmaker(make_engine(), class_=LockingSession)() as another:
        assert not finds_held()(another)
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(30,)]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.databases("mysql", "mariadb")
def test_no_lock_is_left_on_a_connection_that_was_lent_for_one_class(
    make_engine: Callable[..., sa.Engine],
) -> None:
    # At this level the return of a connection sends only the statements that this test checks.
    engine = make_engine(isolation_level="READ COMMITTED", **skip_redundant_rollback())
    with engine.connect() as lent:
        with Session(engine) as session:
            session.bind_mapper(Order, lent)
            session.get_one_entity(Order, 1, ForUpdate)
            session.commit()
        # For a locking SELECT the server does not report that a transaction is open.
        raw(lent.connection, "SELECT id FROM lk_order WHERE id = 1 FOR UPDATE")
    with sessionmaker(make_engine(), class_=LockingSession)() as another:
        assert not finds_held()(another)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_a_named_lock_is_not_left_either(
    session: Session, make_engine: Callable[..., sa.Engine]
) -> None:
    session.lock_key("a")
    session.commit()
    with LockingSession(make_engine()) as another:
        another.lock_key("a", lock_timeout=0)
    session.lock_key("a")
    with LockingSession(make_engine()) as another, pytest.raises(LockNotAvailable):
        another.lock_key("a", lock_timeout=0)


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
def test_what_was_saved_is_saved(session: Session, elsewhere: Callable[..., list[Any]]) -> None:
    with session.locked(Order, 1) as order:
        order.total = 31
    assert elsewhere(sa.select(Order.total).where(Order.id == 1)) == [(31,)]


@pytest.mark.databases("postgresql", "mysql", "mariadb", "sqlite")
@pytest.mark.databases("mysql", "mariadb")
def test_the_status_is_what_the_server_has_said(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        strategy = strategy_for(connection)
        driver = connection.connection.dbapi_connection
        connection.exec_driver_sql(_CHANGE)
        assert not strategy.status.is_idle(driver)
        connection.commit()
        assert strategy.status.is_idle(driver)
        connection.exec_driver_sql("SET SESSION completion_type = 'CHAIN'")
        connection.commit()  # which began another transaction
        assert not strategy.status.is_idle(driver)
        connection.exec_driver_sql("SET SESSION completion_type = 'NO_CHAIN'")
    assert not strategy.status.is_idle(object())  # a driver that does not report it


# --------------------------------------------------------------------------------------------------
# The number of round trips at the end of a transaction.

Connect = Callable[..., Session]
innodb = pytest.mark.databases("mysql", "mariadb")


def update(session: Session) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    order.total += 1
    session.save_changes()


def load(session: Session) -> None:
    order = session.get_one_entity(Order, 1, LockOptions.SharedRead)
    assert len(order.lines) == 2
    session.release_locks()


def leave(session: Session) -> None:
    session.get_one_entity(Order, 1, LockOptions.ForUpdate)
    session.close()


ENDS: Mapping[str, Callable[[Session], None]] = {"update": update, "load": load}
each_end = pytest.mark.parametrize("use", ENDS.values(), ids=ENDS)


def trips(wire: Wire, session: Session, use: Callable[[Session], Any]) -> int:
    use(session)
    with wire.counting() as counted:
        use(session)
    return counted[0]


@innodb
@each_end
def test_it_saves_one(wire: Wire, connect: Connect, use: Callable[[Session], None]) -> None:
    as_ever = trips(wire, connect(), use)
    assert as_ever == 4
    assert trips(wire, connect(**skip_redundant_rollback()), use) == 3


@innodb
@each_end
def test_a_default_engine_costs_one_more(
    wire: Wire, connect: Connect, use: Callable[[Session], None]
) -> None:
    assert trips(wire, connect(isolation_level="REPEATABLE READ"), use) == 5
    spared = connect(isolation_level="REPEATABLE READ", **skip_redundant_rollback())
    assert trips(wire, spared, use) == 4


@innodb
def test_a_session_that_is_closed_in_the_midst_costs_what_it_did(
    wire: Wire, connect: Connect
) -> None:
    assert (
        trips(wire, connect(), leave)
        == trips(wire, connect(**skip_redundant_rollback()), leave)
        == 3
    )


@pytest.mark.databases("postgresql")
@pytest.mark.not_databases(PIPELINED)
@each_end
def test_postgresql_has_nothing_to_save(
    wire: Wire, connect: Connect, use: Callable[[Session], None]
) -> None:
    as_ever = trips(wire, connect(), use)
    assert as_ever == 4  # BEGIN, the lock, lines or UPDATE, COMMIT or ROLLBACK
    assert trips(wire, connect(**skip_redundant_rollback()), use) == as_ever


@innodb
@in_a_loop
async def test_it_saves_one_under_asyncio(
    documents: Database, wire: Wire, read_committed: dict[str, Any]
) -> None:
    counted = []
    for options in ({}, skip_redundant_rollback()):
        url = url_for(documents, "aiomysql").set(host="127.0.0.1", port=wire.port)
        async with (
            connected(url, pool_size=1, max_overflow=0, **read_committed, **options) as engine,
            AsyncLockingSession(engine) as session,
        ):
            for _ in range(2):
                with wire.counting() as trips:
                    async with session.locked(Order, 1) as order:
                        order.total += 1
            counted += trips
    assert counted == [4, 3]
